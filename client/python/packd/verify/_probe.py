"""The exact probe of a variable-length attention: with Q = K = 0 every key that a query may see counts the same, so sums of small
integers come out, and any foreign, missing or future key shows as a number.

The mask comes from cu_seqlens; what is summed comes from positions (where they restart, a segment begins), so that each array
catches the other. A function of the trainer returns means in its own dtype, not sums, so values are chosen such that rounding
cannot hide anything (it must sum in float32, as attention kernels do):

    code     2 channels a bit of the segment's index, one for the bit, one for its complement. A query's own segment leaves one of the
             two at exactly 0: a foreign key makes it positive, however many keys there are.
    first    1 at the segment's first position: the mean is 1 / (number of keys seen), so the count of keys is bounded tightly.
    keys     1 on one stretch of positions of the segment: mean * count is the number of keys seen in the stretch, an integer that
             rounding to bfloat16 keeps apart from its neighbours while stretches are short enough (32 positions; float32: 65,536).
             A stretch that lies behind the query must give exactly 0.

Missing one key of a stretch moves its mean by more than `first` allows the count to be off, so no missing key cancels out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy

from packd.adapters import flash_attn
from packd.adapters.common import plain
from packd.batch import Batch
from packd.errors import Error, InvalidArgument
from packd.verify._structure import structure

# dtype -> (relative error that the mean may have, longest stretch): 1 / stretch is at least twice the error.
_SIZE_MAX = 1 << 16  # heads, head_dim
_DTYPES = {"bfloat16": (2.0**-7, 32), "float16": (2.0**-10, 256), "float32": (2.0**-18, 65536), "float64": (2.0**-18, 65536)}


@dataclass
class ProbeReport:
    """violations: {check: positions of the flattened batch} for "foreign", "count", "keys" and "unwritten"; structure: broken rules
    of the arrays; runs: calls of the function; exact_keys: every key was checked. True where there is none; str() explains."""
    rows: int
    width: int
    violations: dict[str, numpy.ndarray] = field(default_factory=dict)
    structure: list[str] = field(default_factory=list)
    runs: int = 0

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return not self.structure and not any(len(at) for at in self.violations.values())

    __bool__ = ok.fget

    def __str__(self) -> str:
        if self.ok:
            return f"exact: every query of [{self.rows}, {self.width}] sees its own keys and no other, {self.runs} runs"
        meaning = {"foreign": "see keys of another segment", "count": "see another number of keys than they should",
                   "keys": "miss keys of their own segment, or see later ones", "unwritten": "come out as NaN"}
        lines = [f"{len(at)} queries {meaning[check]}, the first at row {at[0] // self.width} column {at[0] % self.width}"
                 for check, at in self.violations.items() if len(at)]
        return "\n  ".join(["not exact:"] + self.structure + lines)


class ProbeFailed(Error):
    """packd.verify.probe found something; `report` has it all."""

    def __init__(self, text: str, report: ProbeReport | None = None, **facts: Any):
        super().__init__(text, **facts)
        self.report = report


def probe(attn_fn: Callable[..., Any], batch: Batch, *, causal: bool = True, heads: int = 1, head_dim: int = 64, dtype: str = "float32",
          device: Any = None, framework: str | None = None, check: bool = True) -> ProbeReport:
    """Runs the attention function over the batch's boundaries with values that count; raises ProbeFailed where a count is wrong.

    attn_fn(q, k, v, cu_seqlens, max_seqlen): [T, heads, head_dim] in and out, cu_seqlens int32 [S + 1], max_seqlen int; softmax
    attention without dropout, windows, biases or sinks. A function with the parameters of flash_attn_varlen_func is called by those.
    causal: what it is meant to be. dtype: "float32", "bfloat16", "float16", "float64". device: of the tensors. framework: "torch" or
    "numpy"; None: torch where it can be imported. check: False returns the report in any case.
    InvalidArgument: an output of another shape, a head_dim too small for so many segments.
    """
    batch = plain(batch)
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidArgument(f"dtype {dtype!r}: expected one of {list(_DTYPES)}")
    if not all(isinstance(size, int) and 1 <= size <= _SIZE_MAX for size in (heads, head_dim)):
        raise InvalidArgument(f"heads={heads!r}, head_dim={head_dim!r}: expected integers of 1 to {_SIZE_MAX}")
    call = _Call(attn_fn, batch, causal, (heads, head_dim), dtype, device, framework)
    report = ProbeReport(*batch["tokens"].shape, structure=structure(batch))
    expected = _Expected(batch, causal)
    found = {name: numpy.zeros(expected.total, bool) for name in ("foreign", "count", "keys", "unwritten")}
    error, stretch = _DTYPES[dtype]
    code = expected.code()
    room = head_dim - 1 - code.shape[1]
    if room < 1:
        raise InvalidArgument(f"head_dim {head_dim} has no room for {code.shape[1]} code channels of {expected.segments} segments: "
                              f"use head_dim {2 * head_dim}")
    stretches = -(-int(expected.position.max() + 1) // stretch)
    for begin in range(0, stretches, room * heads):
        firsts = [[h * room + begin + c for c in range(room)] for h in range(heads)]
        values = numpy.stack([expected.values(code, numbers, stretch) for numbers in firsts], 1)
        means = call(values)
        report.runs += 1
        for h, numbers in enumerate(firsts):
            expected.judge(found, means[:, h], code, numbers, stretch, error)
    report.violations = {name: numpy.flatnonzero(at) for name, at in found.items()}
    if check and not report.ok:
        raise ProbeFailed(str(report), report, step=batch.header.get("step"), dp_rank=batch.header.get("dp_rank"), reason="PROBE_FAILED")
    return report


class _Expected:
    """Closed forms, from positions alone."""

    def __init__(self, batch: Batch, causal: bool):
        rows, width = batch["tokens"].shape
        self.total, self.causal = rows * width, causal
        positions = batch["positions"]
        if positions.shape != (rows, width):  # M-RoPE: three rows that may repeat 0, so the boundaries give the positions
            cu = batch["cu_seqlens"]
            self.position = numpy.arange(self.total) - numpy.repeat(cu[:-1], numpy.diff(cu))
        else:
            self.position = positions.reshape(-1).astype("int64")
        self.owner = numpy.cumsum(self.position == 0) - 1
        self.segments = int(self.owner.max()) + 1
        sizes = numpy.bincount(numpy.maximum(self.owner, 0), minlength=self.segments)
        self.seen = self.position + 1 if causal else sizes[self.owner]

    def code(self) -> numpy.ndarray:
        """bool [T, 2 * bits]: bits of the owner, then their complements."""
        bits = max(1, (self.segments - 1).bit_length())
        ones = (self.owner[:, None] >> numpy.arange(bits) & 1).astype(bool)
        return numpy.concatenate([ones, ~ones], 1)

    def values(self, code: numpy.ndarray, numbers: list[int], stretch: int) -> numpy.ndarray:
        """float32 [T, head_dim]: first, code, keys."""
        keys = self.position[:, None] // stretch == numpy.array(numbers)
        return numpy.concatenate([(self.position == 0)[:, None], code, keys], 1).astype("float32")

    def judge(self, found: dict[str, numpy.ndarray], means: numpy.ndarray, code: numpy.ndarray, numbers: list[int], stretch: int,
              error: float) -> None:
        """Marks the positions where a mean is none of the expected ones."""
        bits = code.shape[1]
        found["unwritten"] |= ~numpy.isfinite(means).all(axis=1)
        with numpy.errstate(invalid="ignore"):
            found["foreign"] |= ((means[:, 1:1 + bits] != 0) & ~code).any(axis=1)
            found["count"] |= ~(numpy.abs(means[:, 0] * self.seen - 1) <= error)
            begins = numpy.array(numbers) * stretch
            keys = numpy.clip(self.seen[:, None] - begins, 0, stretch)
            counted = means[:, 1 + bits:] * self.seen[:, None]
            right = numpy.where(keys == 0, counted == 0, numpy.abs(counted - keys) <= error * keys)
        found["keys"] |= ~right.all(axis=1)


class _Call:
    """The attention function with tensors of its kind."""

    def __init__(self, attn_fn: Callable[..., Any], batch: Batch, causal: bool, shape: tuple[int, int], dtype: str, device: Any,
                 framework: str | None):
        if dtype not in _DTYPES:
            raise InvalidArgument(f"dtype {dtype!r}: expected one of {', '.join(_DTYPES)}")
        self.function, self.causal, self.shape, self.dtype, self.device = attn_fn, causal, shape, dtype, device
        self.torch = None
        if framework != "numpy":
            try:
                import torch
                self.torch = torch
            except ImportError:
                if framework == "torch":
                    raise
        self.cu_seqlens = self.tensor(batch["cu_seqlens"], "int32")
        self.longest = int(batch.header["max_seqlen"])
        try:
            named = set(flash_attn.REQUIRED) <= set(inspect.signature(attn_fn).parameters)
        except (TypeError, ValueError):
            named = False
        self.by_name = named

    def tensor(self, array: numpy.ndarray, dtype: str) -> Any:
        if self.torch is None:
            return array.astype("float32" if dtype == "bfloat16" else dtype)
        made = self.torch.from_numpy(numpy.ascontiguousarray(array)).to(getattr(self.torch, dtype))
        return made if self.device is None else made.to(self.device)

    def __call__(self, values: numpy.ndarray) -> numpy.ndarray:
        """float64 [T, heads, head_dim] of the function's output."""
        v = self.tensor(values, self.dtype)
        q, k = self.tensor(numpy.zeros(values.shape, "float32"), self.dtype), self.tensor(numpy.zeros(values.shape, "float32"), self.dtype)
        if self.by_name:
            out = self.function(q=q, k=k, v=v, cu_seqlens_q=self.cu_seqlens, cu_seqlens_k=self.cu_seqlens, max_seqlen_q=self.longest,
                                max_seqlen_k=self.longest, causal=self.causal)
        else:
            out = self.function(q, k, v, self.cu_seqlens, self.longest)
        out = out[0] if isinstance(out, tuple) else out
        if tuple(out.shape) != values.shape:
            raise InvalidArgument(f"attn_fn returned shape {list(out.shape)}: expected that of v, {list(values.shape)}")
        return out.detach().double().cpu().numpy() if self.torch is not None else numpy.asarray(out, "float64")
