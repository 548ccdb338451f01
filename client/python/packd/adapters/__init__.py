"""Adapters: a packd batch in the keys, dtypes and conventions that other libraries expect.

    inputs = packd.adapters.get("hf")(batch)                                   # model(**inputs)
    share = packd.adapters.get("megatron")(batch, cp_size=4, cp_rank=1)        # one context-parallel rank's
    packd.adapters.names()                                                     # what there is

Each adapter is one small module, whose text lists its keys. Labels: those that expect the other convention than the feed serves
convert it exactly (convert=False refuses instead), so no model shifts twice or not at all. A consumer without a key for weights
refuses a batch that needs them. Named tensors and weights join by extras=(...).
"""

from __future__ import annotations

from packd.adapters import (arrays, flash_attn, flex, hf, mamba, maxtext, megatron, pi0, qwen2_5_vl, sdpa, torchtitan, trl,
                            zigzag)
from packd.adapters.common import Adapter
from packd.errors import InvalidArgument

_TABLE = {module.ADAPTER.name: module.ADAPTER
          for module in (hf, trl, flash_attn, flex, sdpa, megatron, torchtitan, maxtext, mamba, qwen2_5_vl, pi0, arrays)}
_TABLE["jax"] = arrays.ADAPTER

__all__ = ["Adapter", "get", "names", "flash_attn", "flex", "trl", "zigzag"]


def names() -> list[str]:
    """The adapters there are."""
    return list(_TABLE)


def get(name: str) -> Adapter:
    """The adapter of that name. InvalidArgument: there is none; the text lists all."""
    try:
        return _TABLE[name]
    except (KeyError, TypeError):
        raise InvalidArgument(f"unknown adapter {name!r}; there are: {', '.join(_TABLE)}", reason="UNKNOWN_ADAPTER") from None
