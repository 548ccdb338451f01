"""scaled_dot_product_attention: a dense block-diagonal mask, for small models and short rows.

    tokens, labels, positions   int32 [R, W]; labels as the feed serves them
    loss_weight                 float32 [R, W]
    attn_mask                   bool [R, 1, W, W], True where a query (third axis) may see a key; never a row of False alone

The mask costs R * W * W bytes; above `mask_bytes` (256 MiB) it is refused, and a variable-length kernel is what to use. Options:
causal (True), mask_bytes.

A context-parallel share holds queries of two chunks of every row, keys of all: attn_mask [R, 1, W / cp_size, W].
"""

from __future__ import annotations

from typing import Any

import numpy

from packd.adapters import flex
from packd.adapters.common import Adapter, View
from packd.errors import LimitExceeded


def build(view: View, causal: bool = True, mask_bytes: int = 256 << 20) -> dict[str, Any]:
    """See the module. LimitExceeded: the mask would be larger than mask_bytes."""
    need = view.rows * view.width * view.width
    if need > mask_bytes:
        raise LimitExceeded(f"a dense mask of [{view.rows}, 1, {view.width}, {view.width}] takes {need} bytes, over mask_bytes = "
                            f"{mask_bytes}: use a variable-length kernel (flash_attn, flex), or raise mask_bytes")
    ids = flex.rows(view.batch)
    mask = ids[:, None, :, None] == ids[:, None, None, :]
    if causal:
        mask &= numpy.tri(view.width, dtype=bool)
    return {"tokens": view["tokens"], "labels": view["labels"], "loss_weight": view["loss_weight"],
            "positions": view["positions"], "attn_mask": mask}


ADAPTER = Adapter(name="sdpa", build=build, keys=("tokens", "labels", "loss_weight", "positions", "attn_mask"),
                  cp="row", layout="[R, W]", weights=True,
                  token_axes={"tokens": 1, "labels": 1, "loss_weight": 1, "positions": -1, "attn_mask": 2},
                  doc="scaled_dot_product_attention")
