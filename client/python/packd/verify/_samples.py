"""Batches made from a batch: one sample changed, or one sample alone. What the checks of packd.verify run a model on.

Everything stays as it is, shapes too, but for what is changed, so that a model that is compiled or sharded for one shape runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from packd._lib import whole
from packd._ragged import INT32_MAX, as_int32
from packd.batch import Batch
from packd.errors import InvalidArgument

_PAD_SEGMENT = 1024


class Place(NamedTuple):
    """One real segment: where it lies, and whose it is."""
    segment: int   # index into seq_lens
    row: int
    number: int    # its segment_ids
    start: int     # in the flattened batch
    length: int
    name: str      # "stream:seq" of the sample table, "" without one

    def __str__(self) -> str:
        return f"row {self.row} segment {self.number}" + (f" ({self.name})" if self.name else "")


def places(batch: Batch) -> list[Place]:
    """The real segments, in batch order."""
    width = batch["tokens"].shape[1]
    cu, lens, index = batch["cu_seqlens"], batch["seq_lens"], batch["sample_index"]
    table = batch.header.get("samples")
    found = []
    for segment in numpy.flatnonzero(lens > 0).tolist():
        start, row = int(cu[segment]), int(cu[segment]) // width
        sample = table[int(index[segment])] if table is not None and 0 <= index[segment] < len(table) else None
        number = found[-1].number + 1 if found and found[-1].row == row else 1
        name = f"{sample.stream}:{sample.seq}" + (f" part {sample.part}" if sample.part else "") if sample else ""
        found.append(Place(segment, row, number, start, int(lens[segment]), name))
    return found


class Changer:
    """Changes tokens: each to another one of the pool, never to or from a frozen one."""

    def __init__(self, batch: Batch, vocab_size: int | None, frozen: Sequence[int], seed: int):
        self.batch, self.random = batch, numpy.random.default_rng(whole("seed", seed))
        real = batch["tokens"][batch["segment_ids"] > 0]
        self.frozen = as_int32("frozen", list(frozen))
        pool = numpy.arange(whole("vocab_size", vocab_size, 0, INT32_MAX), dtype="int32") if vocab_size else numpy.unique(real)
        self.pool = numpy.setdiff1d(pool, self.frozen)
        if len(self.pool) < 2:
            raise InvalidArgument("the batch has no two tokens to exchange: give vocab_size")

    def __call__(self, positions: numpy.ndarray) -> Batch:
        """The batch with other tokens at `positions` of the flattened batch."""
        tokens = self.batch["tokens"].copy()
        flat = tokens.reshape(-1)
        old = flat[positions]
        at = numpy.searchsorted(self.pool, old) % len(self.pool)
        step = self.random.integers(1, len(self.pool), len(positions))
        new = numpy.where(self.pool[at] == old, self.pool[(at + step) % len(self.pool)], self.pool[at])
        flat[positions] = numpy.where(numpy.isin(old, self.frozen), old, new)
        return Batch.from_arrays(dict(self.batch.items()) | {"tokens": tokens}, self.batch.header)


def alone(batch: Batch, place: Place) -> Batch:
    """The same shape with that sample at the start of row 0 and nothing else; step_totals stay those of the whole step."""
    rows, width = batch["tokens"].shape
    flat = slice(place.start, place.start + place.length)
    slot = int(batch["cu_seqlens"][place.segment + 1]) - place.start
    cu = _boundaries(rows, width, slot)
    arrays: dict[str, numpy.ndarray] = {}
    for name, array in batch.items():
        if array.shape[:2] == (rows, width):
            arrays[name] = numpy.zeros_like(array)
            arrays[name].reshape(-1, *array.shape[2:])[:place.length] = array.reshape(-1, *array.shape[2:])[flat]
    arrays["tokens"].reshape(-1)[place.length:] = batch.header["pad_id"]
    arrays["labels"].reshape(-1)[place.length:] = -100
    arrays["segment_ids"][:] = 0
    arrays["segment_ids"].reshape(-1)[:place.length] = 1
    arrays["positions"] = _positions(batch["positions"], cu, flat, rows, width)
    arrays |= _offsets(cu, place.length, rows, width, batch.header["fixed_segments"])
    arrays |= _named(batch, place, arrays)
    table = batch.header.get("samples")
    sample = [table[int(batch["sample_index"][place.segment])]] if table is not None and len(table) else []
    kept = {name: value for name, value in batch.header.items() if name in (
        "feed", "job", "step", "micro", "dp_rank", "pad_id", "fixed_segments", "label_convention", "loss_weight_policy", "step_totals",
        "step_packs", "dp_size", "accum")}
    return Batch.from_arrays(arrays, kept | {"samples": sample, "n_real_segments": 1, "packs": [0] + [-1] * (rows - 1)})


def _boundaries(rows: int, width: int, slot: int) -> numpy.ndarray:
    cu = [0, slot]
    while cu[-1] < rows * width:
        row_end = (cu[-1] // width + 1) * width
        cu.append(min(row_end, cu[-1] + _PAD_SEGMENT))
    return numpy.array(cu, "int32")


def _positions(given: numpy.ndarray, cu: numpy.ndarray, flat: slice, rows: int, width: int) -> numpy.ndarray:
    """Restarting everywhere; the sample's own (M-RoPE: three rows) as they were."""
    restart = (numpy.arange(rows * width) - numpy.repeat(cu[:-1], numpy.diff(cu))).astype("int32")
    if given.shape == (rows, width):
        return restart.reshape(rows, width)
    made = numpy.tile(restart, (len(given), 1))
    made[:, :flat.stop - flat.start] = given.reshape(len(given), -1)[:, flat]
    return made.reshape(given.shape)


def _offsets(cu: numpy.ndarray, length: int, rows: int, width: int, fixed: int) -> dict[str, numpy.ndarray]:
    lens = numpy.zeros(len(cu) - 1, "int32")
    lens[0] = length
    index = numpy.where(lens > 0, 0, -1).astype("int32")
    padded = numpy.arange(rows + 1, dtype="int32") * width
    real = padded - width + length
    real[0] = 0
    made = {"cu_seqlens": cu, "seq_lens": lens, "sample_index": index, "cu_seqlens_real": real, "cu_seqlens_padded": padded}
    if fixed:
        ends = {"cu_seqlens": cu[-1], "seq_lens": 0, "sample_index": -1, "cu_seqlens_real": real[-1], "cu_seqlens_padded": padded[-1]}
        for name, array in made.items():
            more = fixed + name.startswith("cu") - len(array)
            made[name] = numpy.append(array, numpy.full(max(0, more), ends[name], "int32"))
    return made


def _named(batch: Batch, place: Place, done: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    """Ragged and per-sample tensors: the sample's own part."""
    index, made = int(batch["sample_index"][place.segment]), {}
    for name, array in batch.items():
        offsets = batch.get(name + "_cu_seqlens")
        if name in done or name.endswith("_cu_seqlens"):
            continue
        if offsets is not None:
            made[name] = array[offsets[index]:offsets[index + 1]]
            made[name + "_cu_seqlens"] = numpy.array([0, len(made[name])], offsets.dtype)
        else:
            made[name] = array[index:index + 1]
    return made


def real_positions(place: Place) -> numpy.ndarray:
    """Its positions in the flattened batch."""
    return numpy.arange(place.start, place.start + place.length)
