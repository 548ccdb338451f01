"""NumPy and JAX: the batch's arrays as a plain dict, nothing copied, labels as the feed serves them.

Every array of the batch, named tensors too, under its own name and with its own shape. All hosts that are replicas of one another
(the same dp_rank) receive the same bytes, which jax.make_array_from_process_local_data asks for. With jit, set the feed's
`fixed_segments`, or leave out cu_seqlens, seq_lens, sample_index and the pair cu_seqlens_real, cu_seqlens_padded: their lengths vary.
Options: names: those to keep; None: all.

A context-parallel share cuts every segment, row by row: [R, W / cp_size].
"""

from __future__ import annotations

from typing import Any

from packd.adapters.common import Adapter, View
from packd.errors import InvalidArgument

TOKEN_AXES = {"tokens": 1, "positions": -1, "segment_ids": 1, "labels": 1, "loss_weight": 1}


def build(view: View, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """See the module. InvalidArgument: a name that the batch does not have."""
    unknown = [name for name in names or () if name not in view.batch]
    if unknown:
        raise InvalidArgument(f"the batch has no {', '.join(unknown)}; it has {', '.join(view.batch)}")
    return {name: view[name] for name in view.batch if names is None or name in names}


ADAPTER = Adapter(name="numpy", build=build, keys=("every array of the batch",), weights=True, framework="numpy", layout="[R, W]",
                  token_axes=TOKEN_AXES, doc="NumPy and JAX")
