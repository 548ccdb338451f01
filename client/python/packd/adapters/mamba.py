"""Mamba, gated delta nets and other layers with a state: seq_idx by row.

    input_ids, labels, position_ids   int64 [R, W]   labels unshifted
    seq_idx                           int32 [R, W]   from 0 in each row, another number in every segment, padding segments included

A layer must reset its convolution and its scan wherever seq_idx changes. Options: padding: the number that padding and gaps get in
stacks that skip some (-1: positions below 0 are skipped); None keeps their segment's.

A context-parallel share cuts every segment; whoever scans over it must put the chunks in order again (zigzag.restore).
"""

from __future__ import annotations

from typing import Any

import numpy

from packd.adapters.common import Adapter, View, int64


def build(view: View, padding: int | None = None) -> dict[str, Any]:
    """See the module."""
    index = view.row_slots()
    if padding is not None:
        index = numpy.where(view["segment_ids"] == 0, numpy.int32(padding), index)
    return {"input_ids": int64(view["tokens"]), "labels": int64(view.labels()), "position_ids": int64(view["positions"]),
            "seq_idx": index}


ADAPTER = Adapter(name="mamba", build=build, labels="unshifted", layout="[R, W]", keys=("input_ids", "labels", "position_ids", "seq_idx"),
                  token_axes={"input_ids": 1, "labels": 1, "position_ids": -1, "seq_idx": 1}, doc="layers with a state")
