"""Which positions a context-parallel rank holds.

Causal attention costs a query as much as stands before it, so a sequence is cut into 2 * cp_size chunks and rank r gets chunk r and
chunk 2 * cp_size - 1 - r: every rank then has the same work. `segments` cuts every segment so (TransformerEngine's order, what
Megatron's thd format and ring attention over packed samples take); `rows` cuts every whole row (for masks over the row).
"""

from __future__ import annotations

import numpy

from packd.errors import InvalidArgument


def _check(cp_size: int, cp_rank: int) -> None:
    if cp_size < 1 or not 0 <= cp_rank < cp_size:
        raise InvalidArgument(f"cp_rank {cp_rank} of cp_size {cp_size}: expected 0 <= cp_rank < cp_size")


def segments(cu_seqlens: numpy.ndarray, cp_size: int, cp_rank: int) -> numpy.ndarray:
    """int64 [T / cp_size]: the rank's two chunks of every segment, in batch order.

    cu_seqlens: int32 [S + 1], of cu_seqlens or cu_seqlens_padded. InvalidArgument: a segment whose length 2 * cp_size does not
    divide; the job's segment_multiple and the feed's seg_align (a multiple of it) see to that.
    """
    _check(cp_size, cp_rank)
    starts, lengths = cu_seqlens[:-1].astype("int64"), numpy.diff(cu_seqlens.astype("int64"))
    wrong = numpy.flatnonzero(lengths % (2 * cp_size))
    if len(wrong):
        raise InvalidArgument(f"segment {wrong[0]} has {lengths[wrong[0]]} positions, which 2 x cp_size = {2 * cp_size} does not divide: "
                              f"set the feed's seg_align and the job's segment_multiple to a multiple of {2 * cp_size}",
                              reason="SEGMENT_MULTIPLE")
    chunks = lengths // (2 * cp_size)
    begins = numpy.stack([starts + cp_rank * chunks, starts + (2 * cp_size - 1 - cp_rank) * chunks], 1).reshape(-1)
    return _runs(begins, numpy.repeat(chunks, 2))


def rows(count: int, width: int, cp_size: int, cp_rank: int) -> numpy.ndarray:
    """int64 [count * width / cp_size]: the rank's two chunks of every row. InvalidArgument: 2 * cp_size does not divide the width."""
    return segments(numpy.arange(count + 1) * width, cp_size, cp_rank)


def _runs(begins: numpy.ndarray, lengths: numpy.ndarray) -> numpy.ndarray:
    """begins[i], begins[i] + 1, ... lengths[i] of them, for each i."""
    ends = numpy.cumsum(lengths)
    return numpy.arange(int(ends[-1]) if len(ends) else 0) + numpy.repeat(begins - (ends - lengths), lengths)


def restore(parts: list[numpy.ndarray], indices: list[numpy.ndarray], axis: int = 0) -> numpy.ndarray:
    """The whole array again from the shares of all ranks and their indices (segments or rows), in rank order."""
    joined, order = numpy.concatenate(parts, axis), numpy.concatenate(indices)
    whole = numpy.empty_like(joined)
    whole[(slice(None),) * axis + (order,)] = joined
    return whole
