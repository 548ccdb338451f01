"""FlexAttention: document ids and the mask function over them.

    document_id   int32 [T]      from 0, never decreasing, over the flattened batch (B = 1): every padded position has one, padding
                                 and gaps have documents of their own
    offsets       int32 [D + 1]  where each document begins; offsets[D] = T
    tokens, labels, positions    int32 [1, T]; labels as the feed serves them
    loss_weight   float32 [1, T]

    packed = packd.adapters.get("flex")(batch)
    mask = create_block_mask(packd.adapters.flex.mask_mod(packed["document_id"]), B=None, H=None, Q_LEN=T, KV_LEN=T)

A gap (seg_align) is a document apart from its sample, so the mask is right without `causal` as well. With one batch row for each
pack use `document_id=rows(batch)` [R, W] and B=R in create_block_mask, since the mask then depends on the row.

A context-parallel share holds queries of two chunks of every segment, keys of all: mask_mod takes `query_index`, the positions in
the flattened batch that the share's queries have (Adapter.indices).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from packd.adapters.common import Adapter, View
from packd.batch import Batch


def document_ids(batch: Batch) -> numpy.ndarray:
    """int32 [T]: one number for each run of positions that belong together."""
    view = View(batch, None, True)
    slots, real = view.slots(), view["segment_ids"].reshape(-1) > 0
    begins = numpy.ones(view.total, bool)
    begins[1:] = (slots[1:] != slots[:-1]) | (real[1:] != real[:-1])
    return (numpy.cumsum(begins) - 1).astype("int32")


def build(view: View) -> dict[str, Any]:
    """See the module."""
    ids = document_ids(view.batch)
    offsets = numpy.append(numpy.flatnonzero(numpy.diff(ids, prepend=-1)), view.total).astype("int32")
    return {"tokens": view.flat(view["tokens"]), "labels": view.flat(view["labels"]), "loss_weight": view.flat(view["loss_weight"]),
            "positions": view.flat(view["positions"]), "document_id": ids, "offsets": offsets}


def rows(batch: Batch) -> numpy.ndarray:
    """int32 [R, W]: document ids, from 0 in each row."""
    ids = document_ids(batch).reshape(tuple(batch["tokens"].shape))
    return ids - ids[:, :1]


def mask_mod(document_id: Any, *, causal: bool = True, query_index: Any = None) -> Callable[[Any, Any, Any, Any], Any]:
    """mask(b, h, q_idx, kv_idx) for create_block_mask: same document and, with causal, no later key.

    document_id: [T], or [R, W] with b the row; on the device of the mask. query_index: see the module.
    """
    per_row = document_id.ndim == 2

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        at = q_idx if query_index is None else query_index[q_idx]
        same = document_id[b, at] == document_id[b, kv_idx] if per_row else document_id[at] == document_id[kv_idx]
        return same & (at >= kv_idx) if causal else same

    return mask


ADAPTER = Adapter(name="flex", build=build, weights=True,
                  keys=("tokens", "labels", "loss_weight", "positions", "document_id", "offsets"),
                  token_axes={"tokens": 1, "labels": 1, "loss_weight": 1, "positions": -1}, doc="FlexAttention")
