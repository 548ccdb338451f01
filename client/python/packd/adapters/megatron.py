"""Megatron Core and Megatron Bridge: a thd batch and the fields of PackedSeqParams.

    tokens, labels, position_ids   int64 [1, T]    labels shifted, 0 where loss_mask is 0 (a target outside the vocabulary would be
                                                   looked up)
    loss_mask                      float32 [1, T]  loss_weight, aligned with the labels
    padding_mask                   bool [1, T]     True on gaps and padding, for the routers of experts
    packed_seq_params              dict            for PackedSeqParams(**...):
        qkv_format                                 "thd"
        cu_seqlens_q, cu_seqlens_kv                int32 [N + 1]  cumulative real lengths
        cu_seqlens_q_padded, cu_seqlens_kv_padded  int32 [N + 1]  where segments lie; the last is T
        max_seqlen_q, max_seqlen_kv                int            of the padded ones
        total_tokens                               int            T: without it no seq_idx is built, and state-space layers
                                                                  carry their state into the next sample

Real and padded offsets are both given, never one of them as both: that would hide the gaps or misread every segment behind one.
Options: pad_between_seqs (False): adds the field of that name, True where a gap or padding lies behind a segment, for versions that
have it; params: the fields to leave out for versions that lack them, as drop=("total_tokens",).

A context-parallel share cuts every padded segment, in TransformerEngine's order; packed_seq_params stay those of the whole batch,
which is what it takes.
"""

from __future__ import annotations

from typing import Any

import numpy

from packd.adapters.common import IGNORE, Adapter, View, int64


def packed_seq_params(view: View, pad_between_seqs: bool, drop: tuple[str, ...]) -> dict[str, Any]:
    """The fields, by name."""
    real, padded, longest = view["cu_seqlens_real"], view["cu_seqlens_padded"], int(view.header["max_seqlen_padded"])
    fields: dict[str, Any] = {
        "qkv_format": "thd", "cu_seqlens_q": real, "cu_seqlens_kv": real, "cu_seqlens_q_padded": padded,
        "cu_seqlens_kv_padded": padded, "max_seqlen_q": longest, "max_seqlen_kv": longest, "total_tokens": view.total}
    if pad_between_seqs:
        fields["pad_between_seqs"] = not numpy.array_equal(real, padded)
    return {name: value for name, value in fields.items() if name not in drop}


def build(view: View, pad_between_seqs: bool = False, drop: tuple[str, ...] = ()) -> dict[str, Any]:
    """See the module."""
    labels = view.labels()
    return {
        "tokens": int64(view.flat(view["tokens"])),
        "labels": int64(view.flat(numpy.where(labels == IGNORE, numpy.int32(0), labels))),
        "loss_mask": view.flat(view["loss_weight"]),
        "position_ids": int64(view.flat(view["positions"])),
        "padding_mask": view.flat(view["segment_ids"] == 0),
        "packed_seq_params": packed_seq_params(view, pad_between_seqs, drop),
    }


ADAPTER = Adapter(
    name="megatron", build=build, labels="shifted", weights=True, cp_boundaries="cu_seqlens_padded",
    keys=("tokens", "labels", "loss_mask", "position_ids", "padding_mask", "packed_seq_params"),
    token_axes={"tokens": 1, "labels": 1, "loss_mask": 1, "position_ids": -1, "padding_mask": 1}, doc="Megatron Core, Megatron Bridge")
