"""torchtitan: the pair ({"input", "positions"}, labels).

    input, positions   int64 [T]   a document begins where positions is 0; padding restarts at 0, so it is documents of its own
    labels             int64 [T]   shifted, -100 without loss

Options: flat (True): False gives [R, W] for each, what collators of rows return. Extras join the dictionary.
"""

from __future__ import annotations

from typing import Any

from packd.adapters.common import Adapter, View, int64


def build(view: View, flat: bool = True) -> dict[str, Any]:
    """See the module."""
    shape = (view.total,) if flat else (view.rows, view.width)
    named = {"input": view["tokens"], "positions": view["positions"], "labels": view.labels()}
    return {name: int64(array).reshape(shape) if array.ndim == 2 else int64(array) for name, array in named.items()}


def _pair(output: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    labels = output.pop("labels")
    return output, labels


ADAPTER = Adapter(name="torchtitan", build=build, labels="shifted", layout="[T]", keys=("input", "positions", "labels"),
                  token_axes={"input": -1, "positions": -1, "labels": -1}, result=_pair, doc="torchtitan's trainer")
