"""What a model returns for a batch, as rows of numbers by position, NumPy or torch, compared where it lies."""

from __future__ import annotations

import sys
from typing import Any

import numpy

from packd.batch import Batch
from packd.errors import InvalidArgument


def _torch(value: Any) -> Any:
    """The torch module if the value is a tensor, else None; never imports it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def by_position(value: Any, batch: Batch) -> Any:
    """[T, F] of an output [T, ...], [1, T, ...] or [R, W, ...]; an object with .logits gives those.

    InvalidArgument: no array, or no axis for the positions.
    """
    value = getattr(value, "logits", value)
    torch = _torch(value)
    if torch is None and not isinstance(value, numpy.ndarray):
        value = numpy.asarray(value)
        if value.dtype == object:
            raise InvalidArgument(f"forward returned {type(value)}: expected a tensor or array with one entry a position")
    rows, width = batch["tokens"].shape
    shape = tuple(value.shape)
    if shape[:1] == (rows * width,):
        flat = value.reshape(rows * width, -1)
    elif shape[:2] in ((1, rows * width), (rows, width)):
        flat = value.reshape(rows * width, -1)
    else:
        raise InvalidArgument(f"forward returned shape {list(shape)} for a batch of [{rows}, {width}]: expected [T, ...], [1, T, ...] or "
                              f"[{rows}, {width}, ...], T = {rows * width}, one entry for every position")
    return flat.detach() if torch is not None else flat


def difference(first: Any, second: Any) -> numpy.ndarray:
    """float64 [T]: the largest difference of each position; 0 where bits, infinities and NaNs agree, inf where only one is a number."""
    torch = _torch(first)
    if torch is None:
        a, b = numpy.asarray(first), numpy.asarray(second)
        if a.dtype.kind != "f":
            a, b = a.astype("float64"), b.astype("float64")
        same = (a == b) | (numpy.isnan(a) & numpy.isnan(b))
        with numpy.errstate(invalid="ignore"):
            gap = numpy.where(same, 0, numpy.abs(a - b)).astype("float64")
        return numpy.nan_to_num(gap, nan=numpy.inf, posinf=numpy.inf).max(axis=1, initial=0)
    wide = torch.float64 if first.dtype == torch.float64 else torch.float32
    a, b = first.to(wide), second.to(wide)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    gap = torch.where(same, torch.zeros((), dtype=wide, device=a.device), (a - b).abs())
    gap = torch.nan_to_num(gap, nan=float("inf"), posinf=float("inf"))
    return gap.amax(dim=1).double().cpu().numpy()


def magnitude(value: Any) -> numpy.ndarray:
    """float64 [T]: the largest finite absolute value of each position."""
    torch = _torch(value)
    array = value.double().cpu().numpy() if torch is not None else numpy.asarray(value, "float64")
    return numpy.abs(numpy.nan_to_num(array, nan=0, posinf=0, neginf=0)).max(axis=1, initial=0)


def not_finite(value: Any) -> numpy.ndarray:
    """bool [T]: positions with a NaN."""
    torch = _torch(value)
    return torch.isnan(value).any(dim=1).cpu().numpy() if torch is not None else numpy.isnan(value).any(axis=1)


def rounding(value: Any) -> float:
    """How far two ways of computing the same may lie apart, relative: by the dtype."""
    name = str(value.dtype).removeprefix("torch.")
    return {"float64": 1e-9, "float32": 1e-4}.get(name, 3e-2)
