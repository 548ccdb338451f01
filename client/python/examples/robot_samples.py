"""A robot data set that is made up from start to end: drawn pictures, random instructions, actions by a formula.

    for sample in robot_samples.make(200, seed=7): producer.put(**sample)

Three cameras of varying resolution; `right_wrist` sees what `left_wrist` sees, a little noisier, so it is the redundant one. A sample is

    BOS  (VISION_START IMAGE ... IMAGE VISION_END) x 3  instruction

with patches of PATCH x PATCH pixels in the order of Qwen2.5-VL (2 x 2 patches of a token together), a state [STATE] and a chunk of CHUNK actions
[ACTION]. One sample in three stands near its episode's end: steps past it repeat the last action, and action_is_pad says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy
import packd

CAMERAS = ("base", "left_wrist", "right_wrist")
REDUNDANT = "right_wrist"
SOURCE = "robot"
BOS, IMAGE, VISION_START, VISION_END, FIRST_WORD, VOCABULARY = 1, 3, 4, 5, 16, 512
SIDE, PATCH = 2, 4                  # patches along a merged token, pixels along a patch
MERGE, PIXELS = SIDE * SIDE, 3 * PATCH * PATCH
CHUNK, ACTION, STATE = 8, 7, 7
BASE_SIDES, WRIST_SIDES = (8, 10, 12, 14), (6, 8, 10)   # patches along an edge
WORDS = (4, 90)                     # of an instruction, most are short


def make(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """`count` samples as Producer.put takes them; the same for the same seed."""
    rng = numpy.random.default_rng(seed)
    for number in range(count):
        yield _sample(rng, number)


def _sample(rng: numpy.random.Generator, number: int) -> dict[str, Any]:
    state = rng.uniform(-1, 1, STATE).astype("float32")
    words = WORDS[0] + int((WORDS[1] - WORDS[0]) * rng.random() ** 3)
    instruction = rng.integers(FIRST_WORD, VOCABULARY, words)
    tokens, spans, patches = [BOS], [], []
    wrist = tuple(int(rng.choice(WRIST_SIDES)) for _ in range(2))
    grids = {"base": tuple(int(rng.choice(BASE_SIDES)) for _ in range(2)), "left_wrist": wrist, "right_wrist": wrist}
    for camera in CAMERAS:
        height, width = grids[camera]
        tokens.append(VISION_START)
        spans.append(packd.Span(offset=len(tokens), length=height * width // MERGE, view=camera, grid=(1, height, width)))
        tokens += [IMAGE] * spans[-1].length + [VISION_END]
        noise = 0.05 if camera == REDUNDANT else 0.0
        patches.append(_patches(_picture(height, width, state, camera == "base") + noise * rng.standard_normal((height * PATCH, width * PATCH, 3))))
    tokens += instruction.tolist()
    actions, is_pad = _chunk(rng, state, instruction, near_end=number % 3 == 2)
    return {"tokens": numpy.array(tokens, "int32"), "key": f"robot-{number}", "spans": spans, "merge": MERGE,
            "tensors": {"pixel_values": packd.Tensor(numpy.concatenate(patches), axis="ragged", unit="patch"),
                        "state": packd.Tensor(state, axis="sample"),
                        "action": packd.Tensor(actions, axis="sample", loss=True, pad_mask="action_is_pad"),
                        "action_is_pad": packd.Tensor(is_pad, axis="sample")}}


def _picture(height: int, width: int, state: numpy.ndarray, wide: bool) -> numpy.ndarray:
    """[height * PATCH, width * PATCH, 3]: waves whose direction and phase the state gives."""
    y, x = numpy.mgrid[0:1:1j * height * PATCH, 0:1:1j * width * PATCH]
    waves = [numpy.sin((2 if wide else 5) * (x * state[c] + y * state[c + 3]) + math.pi * state[6]) for c in range(3)]
    return numpy.stack(waves, -1)


def _patches(picture: numpy.ndarray) -> numpy.ndarray:
    """[patches, PIXELS], the SIDE x SIDE patches of a merged token after one another."""
    height, width = picture.shape[0] // PATCH, picture.shape[1] // PATCH
    cut = picture.reshape(height // SIDE, SIDE, PATCH, width // SIDE, SIDE, PATCH, 3)
    return cut.transpose(0, 3, 1, 4, 6, 2, 5).reshape(height * width, PIXELS).astype("float32")


def _chunk(rng: numpy.random.Generator, state: numpy.ndarray, instruction: numpy.ndarray, near_end: bool) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Actions [CHUNK, ACTION] and action_is_pad [CHUNK]; near_end: the chunk reaches past the episode's end."""
    steps = numpy.arange(CHUNK, dtype="float32")[:, None] / CHUNK
    actions = (state[None, :ACTION] * (1 - steps) + math.sin(float(instruction.sum())) * steps).astype("float32")
    valid = int(rng.integers(1, CHUNK)) if near_end else CHUNK
    actions[valid:] = actions[valid - 1]
    return actions, numpy.arange(CHUNK) >= valid
