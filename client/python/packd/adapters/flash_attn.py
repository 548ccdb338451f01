"""flash-attn: the variable-length arguments of flash_attn_varlen_func.

    cu_seqlens_q, cu_seqlens_k   int32 [S + 1]  one array under both names
    max_seqlen_q, max_seqlen_k   int            plain

    adapted = packd.adapters.get("flash_attn")
    attend = packd.adapters.flash_attn.bind(flash_attn_varlen_func, batch, causal=True)
    out = attend(q, k, v)                      # q, k, v [T, heads, head_dim] over the flattened batch

`check` looks at the parameters of the function that is installed and refuses, by name, one whose call it does not know: a renamed
or new required parameter would otherwise be a wrong mask or an error in the middle of a run.

A context-parallel share (ring attention over zig-zag chunks) gets boundaries and lengths divided by cp_size, those of its own chunks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from packd.adapters.common import Adapter, View, as_torch
from packd.batch import Batch
from packd.errors import Unsupported

REQUIRED = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "causal")


def build(view: View) -> dict[str, Any]:
    """See the module."""
    longest = int(view.header["max_seqlen"])
    return {"cu_seqlens_q": view["cu_seqlens"], "cu_seqlens_k": view["cu_seqlens"], "max_seqlen_q": longest, "max_seqlen_k": longest}


def _local(output: dict[str, Any], cp_size: int) -> dict[str, Any]:
    cu_seqlens = output["cu_seqlens_q"] // cp_size
    longest = output["max_seqlen_q"] // cp_size
    return {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": longest, "max_seqlen_k": longest}


def check(function: Callable[..., Any]) -> None:
    """Unsupported, naming the function and the parameters, unless it takes q, k, v, cu_seqlens_q/k, max_seqlen_q/k and causal by
    those names and can be called without any other."""
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise Unsupported(f"{name}: its parameters cannot be read, so its boundaries cannot be trusted",
                          reason="UNKNOWN_SIGNATURE") from None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {key for key, parameter in parameters.items() if parameter.kind in by_name}
    missing = [key for key in REQUIRED if key not in named]
    needed = [key for key, parameter in parameters.items() if key not in REQUIRED
              and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
              and (parameter.default is inspect.Parameter.empty or parameter.kind not in by_name)]
    if missing or needed:
        raise Unsupported(f"{name}({', '.join(parameters)}) is not a variable-length attention that packd knows: "
                          f"{'missing ' + ', '.join(missing) if missing else ''}{'; ' if missing and needed else ''}"
                          f"{'needs ' + ', '.join(needed) if needed else ''}; expected {', '.join(REQUIRED)}",
                          reason="UNKNOWN_SIGNATURE")


def bind(function: Callable[..., Any], batch: Batch, *, causal: bool = True, device: Any = None, **arguments: Any) -> Callable[..., Any]:
    """attend(q, k, v, **more): the checked function with the batch's boundaries. `device`: where cu_seqlens goes (None: stays)."""
    check(function)
    packed = as_torch(build(View(batch, None, True)))
    if device is not None:
        packed["cu_seqlens_q"] = packed["cu_seqlens_k"] = packed["cu_seqlens_q"].to(device)

    def attend(q: Any, k: Any, v: Any, **more: Any) -> Any:
        return function(q, k, v, causal=causal, **packed, **arguments, **more)

    return attend


ADAPTER = Adapter(name="flash_attn", build=build, keys=("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), weights=True,
                  cp_local=_local, doc="flash_attn_varlen_func")
