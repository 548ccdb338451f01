"""The rules of a batch's arrays that need nothing but the arrays."""

from __future__ import annotations

import numpy

from packd.adapters.common import plain
from packd.batch import Batch

IGNORE = -100


def structure(batch: Batch) -> list[str]:
    """The broken rules, each with the first place; empty for a good batch. O(T), no model, no server."""
    batch = plain(batch)
    broken = _boundaries(batch)
    if broken:  # what follows reads segments
        return broken
    rows, width = batch["tokens"].shape
    cu, lens = batch["cu_seqlens"].astype("int64"), batch["seq_lens"].astype("int64")
    steps = numpy.diff(cu)
    start = numpy.repeat(cu[:-1], steps)
    offset = numpy.arange(rows * width) - start
    length = numpy.repeat(lens, steps)
    real = offset < length
    flat = {name: batch[name].reshape(-1) for name in ("tokens", "segment_ids", "labels", "loss_weight")}
    target = flat["labels"] != IGNORE
    unshifted = batch.header["label_convention"] == "unshifted"
    edge = real & (offset == (0 if unshifted else length - 1))
    rules = [
        (flat["segment_ids"] == numpy.where(real, _numbers(cu, lens, width, steps), 0), "segment_ids count the segments of a row from 1"),
        (real | (flat["tokens"] == batch.header["pad_id"]), "padding holds pad_id"),
        (real | ~target & (flat["loss_weight"] == 0), "padding has no loss"),
        (target | (flat["loss_weight"] == 0), "loss_weight is 0 where there is no label"),
        (~(edge & target), f"the {'first' if unshifted else 'last'} label of a segment is {IGNORE}"),
    ]
    if batch["positions"].shape == (rows, width):
        rules.insert(0, (batch["positions"].reshape(-1) == offset, "positions restart at 0 in every segment"))
    return [f"{rule}: not at row {at // width} column {at % width}" for holds, rule in rules
            if not holds.all() for at in [int(numpy.argmin(holds))]]


def _boundaries(batch: Batch) -> list[str]:
    rows, width = batch["tokens"].shape
    cu, lens, total = batch["cu_seqlens"], batch["seq_lens"], rows * width
    steps = numpy.diff(cu)
    fixed = batch.header["fixed_segments"] > 0
    rules = [
        (cu.dtype == numpy.int32 and cu.ndim == 1 and len(cu) == len(lens) + 1, "cu_seqlens is int32 with one entry more than seq_lens"),
        (len(cu) > 1 and cu[0] == 0 and cu[-1] == total, f"cu_seqlens begins with 0 and ends with {total}"),
        (bool((steps > 0).all() or fixed and (steps >= 0).all()), "cu_seqlens increases strictly"),
        (bool(numpy.isin(numpy.arange(0, total, width), cu).all()), "every row start is a boundary"),
        (len(steps) == len(lens) and bool(((lens >= 0) & (lens <= steps)).all()), "seq_lens fit their slots"),
        (batch.header["max_seqlen"] == int(steps.max(initial=0)), f"max_seqlen is the longest slot, {int(steps.max(initial=0))}"),
    ]
    return [f"{rule}: it does not hold" for holds, rule in rules if not holds]


def _numbers(cu: numpy.ndarray, lens: numpy.ndarray, width: int, steps: numpy.ndarray) -> numpy.ndarray:
    """Number of the real segment in its row, by position."""
    counted = numpy.cumsum(lens > 0)
    row_of = cu[:-1] // width
    first = numpy.searchsorted(row_of, row_of)  # the first segment of its row
    before = counted[first] - (lens[first] > 0)
    return numpy.repeat(counted - before, steps)
