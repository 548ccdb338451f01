"""pi0 and pi0.5: one row per sample, for policies that attend over cameras, prompt, state and action chunk of one sample at a time.

    images                 {camera: [B, ...]}  as pushed; zeros where a sample has no image of that camera
    image_masks            {camera: bool [B]}  whether it has one
    state                  [B, K]              as pushed
    actions                [B, C, A]           as pushed
    action_is_pad          bool [B, C]         steps past the episode's end
    action_loss_weight     float32 [B, C]      0 where action_is_pad, else the sample's weight
    action_denominator     float               sum of it over the whole step, all ranks and micro-steps
    tokenized_prompt       int64 [B, L]        prompt tokens, 0 behind them; L: of the batch's longest prompt
    tokenized_prompt_mask  bool [B, L]

B: rows of the sample table, in its order. mean loss of a step: sum(action_loss_weight * loss per chunk step) / action_denominator; never
divide by the chunk's length. Push a camera's images as a tensor of unit `span` and views (the camera), named "image_CAMERA", so that
`drop_views` takes them along; a camera of which the batch has no image is left out, and costs nothing.

Options: cameras: {camera: tensor}, also those without an image then, zeros and False (ranks that compile one graph need that); None: every "image_CAMERA".
media_tokens: placeholders, no part of a prompt. multiple: L is rounded up to one of it. max_length: L's bound (pi0: 48, pi0.5: 200);
a longer prompt is LimitExceeded, never cut. pad_to_max: L is max_length always. state, action: names of these tensors.

There is no context-parallel share: a row is a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from packd.adapters.common import Adapter, View
from packd.errors import InvalidArgument, LimitExceeded, Mismatch

PREFIX = "image_"


def build(view: View, cameras: Mapping[str, str] | None = None, media_tokens: Sequence[int] = (), multiple: int = 1, max_length: int | None = None,
          pad_to_max: bool = False, state: str = "state", action: str = "action") -> dict[str, Any]:
    """See the module. InvalidArgument: a tensor that the batch lacks. Mismatch: split samples, two images of one camera. LimitExceeded: a long prompt."""
    parts = numpy.asarray(view.header["samples"].part)
    if parts.any():
        raise Mismatch(f"adapter pi0: row {int(numpy.argmax(parts != 0))} of the batch is part of a split sample, whose actions are elsewhere: "
                       "set another `over_length`", reason="SPLIT_SAMPLE")
    prompts = _prompts(view, media_tokens)
    length = _length(prompts, multiple, max_length, pad_to_max)
    images, masks = _cameras(view, cameras)
    is_pad = _named(view, f"{action}_is_pad")
    weight, total = _weights(view, action, is_pad)
    tokens = numpy.zeros((len(prompts), length), "int64")
    mask = numpy.zeros((len(prompts), length), "bool")
    for row, prompt in enumerate(prompts):
        tokens[row, :len(prompt)], mask[row, :len(prompt)] = prompt, True
    return {"images": images, "image_masks": masks, "state": _named(view, state), "actions": _named(view, action), "action_is_pad": is_pad,
            "action_loss_weight": weight, "action_denominator": total, "tokenized_prompt": tokens, "tokenized_prompt_mask": mask}


def _named(view: View, name: str) -> numpy.ndarray:
    if name not in view.batch:
        raise InvalidArgument(f"adapter pi0: the batch has no tensor {name!r}; it has {list(view.batch)}")
    return view[name]


def _weights(view: View, action: str, is_pad: numpy.ndarray) -> tuple[numpy.ndarray, float]:
    name = f"{action}_loss_weight"
    if name not in view.batch:
        raise InvalidArgument(f"adapter pi0: the batch has no {name}: push {action} with loss=True and pad_mask=\"{action}_is_pad\"")
    return view[name], float(view.header["step_totals"]["loss"][action]["weight"])


def _prompts(view: View, media_tokens: Sequence[int]) -> list[numpy.ndarray]:
    """Tokens of each row of the sample table that are no placeholders."""
    flat = view["tokens"].reshape(-1)
    prompts: list[numpy.ndarray] = [flat[:0]] * len(view.header["samples"])
    for start, length, row in zip(view["cu_seqlens"], view["seq_lens"], view["sample_index"]):
        if row >= 0:
            tokens = flat[start:start + length]
            prompts[row] = tokens[~numpy.isin(tokens, media_tokens)] if len(media_tokens) else tokens
    return prompts


def _length(prompts: list[numpy.ndarray], multiple: int, max_length: int | None, pad_to_max: bool) -> int:
    if multiple < 1 or (pad_to_max and max_length is None):
        raise InvalidArgument(f"multiple={multiple}, max_length={max_length}, pad_to_max={pad_to_max}: expected a multiple of 1 or more, and max_length "
                              "with pad_to_max")
    longest = max((len(prompt) for prompt in prompts), default=0)
    if max_length is not None and longest > max_length:
        row = next(row for row, prompt in enumerate(prompts) if len(prompt) == longest)
        raise LimitExceeded(f"the prompt of row {row} has {longest} tokens, max_length is {max_length}: raise it, or refuse such samples by the "
                            "feed's seq_len", reason="PROMPT_TOO_LONG")
    if pad_to_max:
        return max_length
    rounded = -(-longest // multiple) * multiple
    return rounded if max_length is None else min(rounded, max_length)


def _cameras(view: View, cameras: Mapping[str, str] | None) -> tuple[dict[str, numpy.ndarray], dict[str, numpy.ndarray]]:
    named = cameras if cameras is not None else {name[len(PREFIX):]: name for name in view.batch
                                                 if name.startswith(PREFIX) and f"{name}_cu_seqlens" in view.batch}
    images, masks = {}, {}
    for camera, name in named.items():
        values, bounds = _named(view, name), _named(view, f"{name}_cu_seqlens")
        counts = numpy.diff(bounds)
        if (counts > 1).any():
            raise Mismatch(f"{name}: row {int(numpy.argmax(counts > 1))} has {counts.max()} images, pi0 takes one for each camera: give "
                           "each its own tensor and views", reason="IMAGE_COUNT")
        if cameras is None and not counts.any():
            continue
        has = counts == 1
        if has.all():
            images[camera] = values
        else:
            images[camera] = numpy.zeros((len(counts), *values.shape[1:]), values.dtype)
            images[camera][has] = values
        masks[camera] = has
    return images, masks


def _whole(_output: dict[str, Any], _cp_size: int) -> dict[str, Any]:
    raise InvalidArgument("adapter pi0 has no context-parallel share: a row is a sample")


ADAPTER = Adapter(
    name="pi0", build=build, weights=True, doc="pi0 and pi0.5", cp_local=_whole,
    keys=("images", "image_masks", "state", "actions", "action_is_pad", "action_loss_weight", "action_denominator", "tokenized_prompt",
          "tokenized_prompt_mask"))
