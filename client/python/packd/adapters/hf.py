"""transformers: the keys of DataCollatorWithFlattening, with the flash-attention arguments and seq_idx.

    input_ids, labels, position_ids   int64 [1, T]   (M-RoPE: position_ids [3, 1, T]); labels unshifted, the model shifts
    cu_seq_lens_q, cu_seq_lens_k      int32 [S + 1]  one array under both names; padding is segments of its own
    max_length_q, max_length_k        int            plain: FlashAttention 4 refuses a tensor
    seq_idx                           int32 [1, T]   from 0, for linear-attention and convolution layers

There is never an attention_mask: with one, transformers ignores the boundaries. Options: position_ids_start (2 for the RoBERTa
family): what positions restart at.

A context-parallel share cuts every segment and has `shift_labels` (what the loss functions of transformers take ready shifted);
cu_seq_lens and max_length stay those of the whole batch.
"""

from __future__ import annotations

from typing import Any

from packd.adapters.common import Adapter, View, int64


def build(view: View, position_ids_start: int = 0) -> dict[str, Any]:
    """See the module."""
    cu_seqlens, longest = view["cu_seqlens"], int(view.header["max_seqlen"])
    positions = int64(view.flat(view["positions"]))
    if position_ids_start:
        positions += position_ids_start
    return {
        "input_ids": int64(view.flat(view["tokens"])),
        "labels": int64(view.flat(view.labels())),
        "position_ids": positions,
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": view.slots().reshape(1, view.total),
    }


ADAPTER = Adapter(
    name="hf", build=build, labels="unshifted", doc="transformers, as DataCollatorWithFlattening",
    keys=("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"),
    token_axes={"input_ids": 1, "labels": 1, "position_ids": -1, "seq_idx": 1})
