"""TRL with padding_free: what its collator returns, or the rows that its collator takes.

    input_ids, labels, position_ids   int64 [1, T]; labels unshifted and -100 wherever position_ids is 0

TRL's trainers refuse another collator while padding_free is set, but theirs rebuilds positions from a `seq_lengths` column: give it
`rows(batch)` (a list of R dicts of plain lists) with dataset_kwargs={"skip_prepare_dataset": True}. The lengths cover each row's
padding as sequences of their own, so no padded position joins a sample and none becomes a one-token sample.
"""

from __future__ import annotations

from typing import Any

import numpy

from packd.adapters.common import Adapter, View, int64, plain
from packd.batch import Batch


def build(view: View) -> dict[str, Any]:
    """See the module."""
    return {"input_ids": int64(view.flat(view["tokens"])), "labels": int64(view.flat(view.labels())),
            "position_ids": int64(view.flat(view["positions"]))}


def rows(batch: Batch) -> list[dict[str, list[int]]]:
    """input_ids, labels, seq_lengths of each row, as TRL's collator takes them. Mismatch: as the adapter."""
    batch = plain(batch)
    ADAPTER(batch, framework="numpy")  # refuses what it must
    view = View(batch, "unshifted", False)
    labels, lengths = view.labels(), numpy.diff(batch["cu_seqlens"])
    row_of = batch["cu_seqlens"][:-1] // view.width
    return [{"input_ids": batch["tokens"][row].tolist(), "labels": labels[row].tolist(),
             "seq_lengths": lengths[(row_of == row) & (lengths > 0)].tolist()} for row in range(view.rows)]


ADAPTER = Adapter(name="trl", build=build, labels="unshifted", doc="TRL with padding_free",
                  keys=("input_ids", "labels", "position_ids"), token_axes={"input_ids": 1, "labels": 1, "position_ids": -1})
