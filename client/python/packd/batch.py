"""A batch: named NumPy arrays over one buffer, and the header that says what they are.

    Batch ── arrays ──> views ──┐
                                ├──> one buffer, as it was received (libpackd's; freed with the last view)
    Samples ── columns ─────────┘

Nothing is copied: each array is a view of the receive buffer and keeps it alive, also after the Batch itself and the job are
gone. Arrays are writable and belong to whoever holds the batch. `Batch.from_arrays` makes the same object from plain arrays, so
that what consumes batches can be tested without a server.

Names, dtypes and rules of the arrays: proto/packd.proto, ArrayInfo. R = rows, W = width, S = n_segments, N = n_real_segments plus
rows of padding alone:

    tokens, positions, segment_ids, labels     int32 [R, W]    (positions [3, R, W] with M-RoPE)
    loss_weight                                float32 [R, W]
    cu_seqlens                                 int32 [S + 1]
    seq_lens, sample_index                     int32 [S]
    cu_seqlens_real, cu_seqlens_padded         int32 [N + 1]
    named tensors                              as pushed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy

from packd.errors import InvalidArgument

# NumPy has no bfloat16: such arrays are uint16 here, and Batch.dtypes tells them apart.
NUMPY_DTYPES = {"bool": "bool", "uint8": "uint8", "int8": "int8", "uint16": "uint16", "int16": "int16", "uint32": "uint32",
                "int32": "int32", "uint64": "uint64", "int64": "int64", "float16": "float16", "bfloat16": "uint16",
                "float32": "float32", "float64": "float64"}


class Sample(NamedTuple):
    """One row of the sample table: one real segment of the batch."""
    stream: str
    seq: int
    part: int
    key: bytes
    source: str
    epoch: int
    group: bytes
    version: int
    offset: int       # first token, counted in the sample
    length: int       # tokens
    digest: int       # XXH3-64 of the whole sample's tokens, as pushed
    flags: int        # 1: cut, 2: pruned
    loss_weight: float  # weight of each of its targets
    loss_tokens: int  # targets in this segment


COLUMN_DTYPES = {"seq": "uint64", "part": "uint32", "epoch": "uint32", "version": "uint64", "offset": "uint32", "length": "uint32",
                 "digest": "uint64", "flags": "uint32", "loss_weight": "float32", "loss_tokens": "uint32"}
_DEFAULTS = {"stream": "default", "source": "default", "key": b"", "group": b""}


class Samples:
    """The sample table, by columns: samples.seq is an array, samples.key a list, samples[3] a Sample; len() rows.

    Columns are those of Sample; numbers are NumPy arrays, names and keys lists. A column is made when it is first looked at.
    """

    def __init__(self, count: int, columns: Mapping[str, Any]):
        """columns: arrays, lists, or functions without arguments that return one; absent ones are all default."""
        self._count = count
        self._columns = dict(columns)

    @classmethod
    def from_rows(cls, rows: list[Mapping[str, Any]] | list[Sample]) -> Samples:
        """From one mapping (or Sample) a row; absent entries are 0, empty, or the name "default"."""
        rows = [row._asdict() if isinstance(row, Sample) else row for row in rows]
        odd = next((at for at, row in enumerate(rows) if not isinstance(row, Mapping)), None)
        if odd is not None:
            raise InvalidArgument(f"sample table: row {odd} is {type(rows[odd]).__name__}: expected a mapping or a Sample")
        unknown = {key for row in rows for key in row} - set(Sample._fields)
        if unknown:
            raise InvalidArgument(f"sample table: unknown columns {sorted(unknown)}; there are {list(Sample._fields)}")
        columns: dict[str, Any] = {}
        for name in Sample._fields:
            values = [row.get(name, _DEFAULTS.get(name, 0)) for row in rows]
            try:
                columns[name] = numpy.array(values, COLUMN_DTYPES[name]) if name in COLUMN_DTYPES else values
            except (OverflowError, TypeError, ValueError) as error:
                raise InvalidArgument(f"sample table: column {name}: {error}") from error
        return cls(len(rows), columns)

    def column(self, name: str) -> Any:
        """The column of that name: NumPy array of COLUMN_DTYPES, else list. InvalidArgument: there is none."""
        if not isinstance(name, str) or name not in Sample._fields:
            raise InvalidArgument(f"the sample table has no column {name!r}; there are {list(Sample._fields)}")
        value = self._columns.get(name)
        if value is None:
            value = (numpy.zeros(self._count, COLUMN_DTYPES[name]) if name in COLUMN_DTYPES
                     else [_DEFAULTS[name]] * self._count)
        elif callable(value):
            value = value()
        self._columns[name] = value
        return value

    def __getattr__(self, name: str) -> Any:
        if name not in Sample._fields:
            raise AttributeError(f"the sample table has no column {name!r}; there are {list(Sample._fields)}")
        return self.column(name)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Sample:
        if not -self._count <= row < self._count:
            raise IndexError(f"row {row} of a sample table of {self._count} rows")
        return Sample(*(_plain(self.column(name)[row]) for name in Sample._fields))

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(self._count))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Samples) and list(self) == list(other)

    def __reduce__(self):
        """Own copies of all columns, for another process."""
        return Samples, (self._count, {name: _copied(self.column(name)) for name in Sample._fields})

    def __repr__(self) -> str:
        return f"Samples({self._count} rows)"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, numpy.generic) else value


def _copied(column: Any) -> Any:
    return column.copy() if isinstance(column, numpy.ndarray) else list(column)


class Named:
    """What batches of arrays and of tensors share: looking into `_arrays` by name with [], in, len, iteration, keys(), values(), items() and
    get(), and the entries of `header` that a training loop needs.

    Not a collections.abc.Mapping: torch's collate functions take those apart and would drop the header.
    """

    _arrays: dict[str, Any]
    header: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(f"the batch has no array {name!r}; it has {', '.join(self._arrays)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def keys(self):
        """Names of the arrays, in payload order."""
        return self._arrays.keys()

    def values(self):
        """The arrays."""
        return self._arrays.values()

    def items(self):
        """(name, array)."""
        return self._arrays.items()

    def get(self, name: str, default: Any = None) -> Any:
        """The array of that name, or `default`."""
        return self._arrays.get(name, default)

    @property
    def step(self) -> int:
        """The optimiser step."""
        return self.header["step"]

    @property
    def micro(self) -> int:
        """The micro-step within it, from 0."""
        return self.header["micro"]

    @property
    def last_of_step(self) -> bool:
        """Whether the optimiser steps behind this batch."""
        return self.header["micro"] + 1 == self.header["accum"]

    @property
    def dp_rank(self) -> int:
        """The data-parallel rank it is for."""
        return self.header["dp_rank"]

    @property
    def rows(self) -> int:
        """R."""
        return self.header["rows"]

    @property
    def width(self) -> int:
        """W."""
        return self.header["width"]

    @property
    def max_seqlen(self) -> int:
        """Largest step of cu_seqlens, padding segments included; a plain int, as kernels want it."""
        return self.header["max_seqlen"]

    @property
    def samples(self) -> Samples:
        """The sample table; sample_index points into it."""
        return self.header["samples"]

    @property
    def label_convention(self) -> str:
        """"unshifted": labels[i] is token i. "shifted": labels[i] is the token that follows i."""
        return self.header["label_convention"]

    @property
    def loss_denominator(self) -> float:
        """Sum of loss_weight over the whole step, all ranks and micro-steps: sum(loss_weight * loss) / it is the step's mean."""
        return self.header["step_totals"]["loss_weight"]


class Batch(Named):
    """What one data-parallel rank receives for one micro-step.

    batch["tokens"] is a NumPy view; `in`, keys(), values(), items() and dict(batch) work as on a mapping of arrays. `header` is a dict:

        feed, job (str), step, micro, dp_rank, rows, width, step_packs, dp_size, accum (int)
        max_seqlen, max_seqlen_real, max_seqlen_padded (int: largest step of cu_seqlens, _real, _padded; padding included)
        n_segments, n_real_segments, fixed_segments (int), pad_id (int), packs (list of int; -1: a row of padding)
        label_convention ("unshifted" | "shifted"), loss_weight_policy ("token" | "sample")
        batch_totals, step_totals (dicts; step: over all ranks and micro-steps): real_tokens, tail_padding, gap, row_padding,
            overlap_tokens, samples, segments, attention_cost, patches, loss_tokens, loss_weight, and
            loss {name: {"count": int, "weight": float}}, "tokens" first
        samples (Samples)
        width_bound, saved_positions (int; a padded job's width, and what the batch's own spares), attention_path ("varlen" | "fixed", a hint for
            trainers that have both kernels; "unknown" of a server that does not say), attention_why (str)
        config_digest, plan_digest, planner_version (int), delivery (dict: verdict, backend, device, generation, times ...)
    """

    def __init__(self, arrays: Mapping[str, numpy.ndarray], header: Mapping[str, Any] | Callable[[], dict[str, Any]], *,
                 dtypes: Mapping[str, str] | None = None, payload: numpy.ndarray | None = None):
        self._arrays = dict(arrays)
        self._header = header if callable(header) else dict(header)
        self.dtypes = dict(dtypes) if dtypes is not None else {name: a.dtype.name for name, a in self._arrays.items()}
        self.payload = payload

    @property
    def header(self) -> dict[str, Any]:
        """What the arrays are; see the class. Made when it is first looked at."""
        if callable(self._header):
            self._header = self._header()
        return self._header

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, numpy.ndarray], header: Mapping[str, Any] | None = None) -> Batch:
        """A batch from plain arrays; header entries that are not given follow from the arrays where they can.

        header["samples"] may be a list of mappings, as for Samples.from_rows. InvalidArgument: tokens that are not [R, W], a dtype that is
        no array's.
        """
        if not isinstance(arrays, Mapping):
            raise InvalidArgument(f"arrays is {type(arrays).__name__}: expected a mapping of names to arrays")
        arrays = {name: numpy.asarray(array) for name, array in arrays.items()}
        return cls(arrays, _completed(arrays, dict(header or {})))

    def torch(self) -> dict[str, Any]:
        """The arrays as torch tensors over the same memory (bfloat16 ones as such)."""
        from packd.torch import tensors
        return tensors(self)

    def copy(self) -> Batch:
        """The same with memory of its own."""
        return Batch({name: a.copy() for name, a in self.items()}, self.header | {"samples": _own(self.header.get("samples"))},
                     dtypes=self.dtypes)

    def __reduce__(self):
        return _unpickled, (dict(self._arrays), self.header, self.dtypes)

    def __repr__(self) -> str:
        h = self.header
        return f"Batch(step={h.get('step')}, micro={h.get('micro')}, dp_rank={h.get('dp_rank')}, [{h.get('rows')}, {h.get('width')}])"


def _unpickled(arrays, header, dtypes):
    return Batch(arrays, header, dtypes=dtypes)


def _own(samples: Any) -> Any:
    if not isinstance(samples, Samples):
        return samples
    kind, arguments = samples.__reduce__()
    return kind(*arguments)


def _completed(arrays: dict[str, numpy.ndarray], header: dict[str, Any]) -> dict[str, Any]:
    """Fills in what the arrays imply."""
    tokens = arrays.get("tokens")
    if tokens is not None and tokens.ndim != 2:
        raise InvalidArgument(f"tokens has shape {list(tokens.shape)}: expected [rows, width]")
    bad = [f"{name} {a.dtype}" for name, a in arrays.items() if a.dtype.name not in NUMPY_DTYPES]
    if bad:
        raise InvalidArgument(f"arrays of a dtype that no batch has: {', '.join(bad)}")
    rows, width = tokens.shape if tokens is not None else (0, 0)
    made: dict[str, Any] = {"feed": "default", "job": "job", "step": 0, "micro": 0, "dp_rank": 0, "rows": rows, "width": width,
                            "step_packs": rows, "dp_size": 1, "accum": 1, "pad_id": 0, "packs": list(range(rows)),
                            "fixed_segments": 0, "label_convention": "unshifted", "loss_weight_policy": "token",
                            "width_bound": width, "saved_positions": 0, "attention_path": "varlen", "attention_why": ""}
    for name, of in (("max_seqlen", "cu_seqlens"), ("max_seqlen_real", "cu_seqlens_real"), ("max_seqlen_padded", "cu_seqlens_padded")):
        steps = numpy.diff(arrays[of]) if of in arrays else numpy.empty(0)
        made[name] = int(steps.max()) if steps.size else 0
    made["n_segments"] = len(arrays["seq_lens"]) if "seq_lens" in arrays else 0
    made["n_real_segments"] = int((arrays["seq_lens"] > 0).sum()) if "seq_lens" in arrays else 0
    made["batch_totals"] = _totals(arrays, made["n_real_segments"])
    header = made | header
    header.setdefault("step_totals", header["batch_totals"])
    samples = header.get("samples")
    if not isinstance(samples, Samples):
        header["samples"] = Samples.from_rows(list(samples or []))
    return header


def _totals(arrays: dict[str, numpy.ndarray], segments: int) -> dict[str, Any]:
    """Totals as far as arrays tell; all padding counts as tail_padding."""
    lengths = arrays.get("seq_lens", numpy.empty(0, "int32")).astype("int64")
    positions = arrays["tokens"].size if "tokens" in arrays else 0
    real = int(lengths.sum())
    weights = arrays.get("loss_weight", numpy.empty(0, "float32"))
    count, weight = int((weights != 0).sum()), float(weights.sum(dtype="float64"))
    return {"real_tokens": real, "tail_padding": positions - real, "gap": 0, "row_padding": 0, "overlap_tokens": 0, "samples": segments,
            "segments": segments, "attention_cost": int((lengths * lengths).sum()), "patches": 0, "loss_tokens": count,
            "loss_weight": weight, "loss": {"tokens": {"count": count, "weight": weight}}}
