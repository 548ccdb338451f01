"""Qwen2-VL and Qwen2.5-VL: the decoder's keys as transformers names them, and what the vision tower needs beside its patches.

    input_ids, labels           int64 [1, T]     labels unshifted, the model shifts; placeholders of media have none
    position_ids                int64 [3, 1, T]  M-RoPE, rows time, height, width
    cu_seq_lens_q, _k           int32 [S + 1]    one array under both names; max_length_q, _k plain ints
    pixel_values                as pushed [P, D] patches in token order
    image_grid_thw              int64 [I, 3]     time, height, width in patches, of every span in token order, videos too
    vision_cu_seqlens           int32 [F + 1]    patches, one segment per image or frame: the tower's full attention
    vision_max_seqlen           int
    window_index                int32 [M]        merged tokens, reordered window by window (needs the feed's vision_window)
    cu_window_seqlens           int32 [V + 1]    patches, one segment per window of that order
    window_max_seqlen           int

Boundaries are those of cu_seq_lens alone: position_ids restart inside a sample too. A step without media has none of the vision keys; a batch without media
in a step with some has them empty, so that all ranks can run the tower.

The feed needs `positions: mrope`. Options: pixels: the named tensor of unit `patch` that holds the patches; None: no pixel_values, for media that the
program decodes itself. placeholders: token ids that stand for media; where given, there must be one for `merge` patches each (4: the 2x2 merger).

A context-parallel share cuts tokens only; every rank has all patches, and takes of the merged tokens those whose placeholders `indices` gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from packd.adapters import hf
from packd.adapters.common import Adapter, View
from packd.errors import InvalidArgument, Mismatch


def build(view: View, pixels: str | None = "pixel_values", placeholders: Sequence[int] = (), merge: int = 4) -> dict[str, Any]:
    """See the module. Mismatch: positions in one row, patches or placeholders that the grids do not give. InvalidArgument: no tensor `pixels`."""
    if view["positions"].ndim != 3:
        raise Mismatch("adapter qwen2_5_vl: positions have one row, M-RoPE has three: set `positions: mrope` in the feed's configuration",
                       reason="POSITIONS")
    output = hf.build(view)
    del output["seq_idx"]
    grids = view.batch.get("image_grid_thw", numpy.zeros((0, 3), "int64"))
    patches = int(grids.prod(1).sum())
    if len(placeholders):
        _check_placeholders(view, placeholders, patches, merge)
    if "image_grid_thw" not in view.batch:
        return output
    if pixels is not None:
        output["pixel_values"] = _pixels(view, pixels, patches)
    output |= {"image_grid_thw": grids, "vision_cu_seqlens": view["vision_cu_seqlens"], "vision_max_seqlen": _longest(view["vision_cu_seqlens"])}
    if "vision_window_index" in view.batch:
        windows = view["vision_window_cu_seqlens"]
        output |= {"window_index": view["vision_window_index"], "cu_window_seqlens": windows, "window_max_seqlen": _longest(windows)}
    return output


def _pixels(view: View, name: str, patches: int) -> numpy.ndarray:
    if name not in view.batch:
        raise InvalidArgument(f"adapter qwen2_5_vl: the batch has media and no tensor {name!r}; it has {list(view.batch)}; name it by pixels=, "
                              "or pixels=None where the program decodes the media itself")
    if len(view[name]) != patches:
        raise Mismatch(f"{name} has {len(view[name])} rows, the grids give {patches} patches: push it with unit \"patch\"", reason="PATCH_COUNT")
    return view[name]


def _longest(cu_seqlens: numpy.ndarray) -> int:
    return int(numpy.diff(cu_seqlens).max(initial=0))


def _check_placeholders(view: View, placeholders: Sequence[int], patches: int, merge: int) -> None:
    found = int(numpy.isin(view["tokens"], placeholders).sum())
    if found * merge != patches:
        raise Mismatch(f"{found} placeholder tokens for {patches} patches: expected {patches / merge:g}, one for {merge} patches each; name the "
                       "placeholders of all media and no other token", reason="PLACEHOLDER_COUNT")


ADAPTER = Adapter(
    name="qwen2_5_vl", build=build, labels="unshifted", doc="Qwen2-VL and Qwen2.5-VL",
    keys=("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "pixel_values", "image_grid_thw",
          "vision_cu_seqlens", "vision_max_seqlen", "window_index", "cu_window_seqlens", "window_max_seqlen"),
    token_axes={"input_ids": 1, "labels": 1, "position_ids": -1})
