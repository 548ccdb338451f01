"""Batches without a server: a slow, plain packer for tests of whatever consumes packd's batches.

    batch = packd.testing.make_batch([[5, 6, 7], [8, 9]], width=8)
    step = packd.testing.make_step(samples, width=64, rows=2, dp_size=2, accum=2)   # {(micro, dp_rank): Batch}

It is written from the batch contract (proto/packd.proto, ArrayInfo) one position at a time and shares no code with packd, so it
also serves as the other opinion in packd's own tests. It packs in order (a sample that does not fit begins the next row), which is
not how the server packs: only the layout of a batch is the same, not which samples share a row.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from packd.batch import Batch
from packd.errors import InvalidArgument

IGNORE = -100  # a label without loss
MOST = 1 << 24  # positions, rows, ranks: what a test may ask for


@dataclass(frozen=True)
class Rules:
    """How rows are laid out; the feed's configuration keys of the same names."""
    labels: str = "unshifted"     # or "shifted"
    loss_weight: str = "token"    # or "sample"
    seg_align: int = 1
    pad_segment: int = 1024
    pad_id: int = 0
    fixed_segments: int = 0
    max_segments: int = 0


def _whole(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """The value as an int. InvalidArgument: it is none, or out of range."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(f"{name} is {value!r}: expected an integer") from error
    if not least <= number <= most:
        raise InvalidArgument(f"{name} is {number}: expected {least} to {most}")
    return number


def _rules(given: Mapping[str, Any]) -> Rules:
    """Checked. InvalidArgument; TypeError: a rule that there is not."""
    rules = Rules(**given)
    if rules.labels not in ("unshifted", "shifted") or rules.loss_weight not in ("token", "sample"):
        raise InvalidArgument(f"labels {rules.labels!r}, loss_weight {rules.loss_weight!r}: expected unshifted or shifted, token or sample")
    _whole("seg_align", rules.seg_align, 1)
    _whole("pad_segment", rules.pad_segment, rules.seg_align)
    _whole("pad_id", rules.pad_id, -(1 << 31), (1 << 31) - 1)
    for name in ("fixed_segments", "max_segments"):
        _whole(name, getattr(rules, name))
    return rules


def make_batch(samples: Sequence[Any], *, width: int, rows: int | None = None, placement: Sequence[Sequence[int]] | None = None,
               header: Mapping[str, Any] | None = None, **rules: Any) -> Batch:
    """One batch of all the samples.

    A sample is a sequence of tokens, or a mapping with "tokens" and, where wanted, "labels", "loss_mask", "weight", "key", "stream",
    "seq", "source", and "tensors" ({name: array}: token axis where its first dimension is the number of tokens).
    width: W. rows: R; None: as many as needed. placement: indexes of the samples in each row; None: in order, a sample that does not
    fit begins the next row. header: entries for the batch's header. rules: see Rules.
    InvalidArgument: a sample without tokens or longer than a row, more rows than `rows`, a placement that is none.
    """
    laid = _Layout(width, _rules(rules))
    samples = [_sample(sample, index) for index, sample in enumerate(samples)]
    placement = laid.place(samples) if placement is None else [[_whole("placement", index) for index in row] for row in placement]
    if sorted(index for row in placement for index in row) != list(range(len(samples))):
        raise InvalidArgument(f"placement {placement} does not name each of {len(samples)} samples once")
    rows = len(placement) if rows is None else _whole("rows", rows, 0, MOST // max(1, laid.width))
    if len(placement) > rows:
        raise InvalidArgument(f"the samples need {len(placement)} rows of {width} positions, there are {rows}")
    for row in range(rows):
        laid.add_row([samples[index] for index in (placement[row] if row < len(placement) else [])])
    return laid.batch(header or {})


def make_step(samples: Sequence[Any], *, width: int, rows: int = 1, dp_size: int = 1, accum: int = 1, step: int = 0,
              **rules: Any) -> dict[tuple[int, int], Batch]:
    """All batches of one step, {(micro, dp_rank): Batch}, with the totals of the whole step in each header.

    Pack j of the step goes to micro j / (dp_size * rows), dp_rank (j / rows) % dp_size, row j % rows. Rows that no sample needs are
    padding. InvalidArgument: as make_batch, or samples that need more than dp_size * rows * accum rows.
    """
    laid = _Layout(width, _rules(rules))
    rows, dp_size, accum, step = _whole("rows", rows, 1), _whole("dp_size", dp_size, 1), _whole("accum", accum, 1), _whole("step", step, 0, 1 << 62)
    _whole("dp_size * rows * accum * width", dp_size * rows * accum * laid.width)
    taken = [_sample(sample, index) for index, sample in enumerate(samples)]
    placement = laid.place(taken)
    packs = dp_size * rows * accum
    if len(placement) > packs:
        raise InvalidArgument(f"the samples need {len(placement)} packs of {width} positions; a step has {packs}")
    placement += [[]] * (packs - len(placement))
    batches = {}
    for first in range(0, packs, rows):
        micro, dp_rank = first // (dp_size * rows), first // rows % dp_size
        one = _Layout(width, laid.rules)
        for row in placement[first:first + rows]:
            one.add_row([taken[index] for index in row])
        header = {"step": step, "micro": micro, "dp_rank": dp_rank, "dp_size": dp_size, "accum": accum, "step_packs": packs,
                  "packs": [step * packs + first + row if placement[first + row] else -1 for row in range(rows)]}
        batches[micro, dp_rank] = one.batch(header)
    total = _sum_totals([batch.header["batch_totals"] for batch in batches.values()])
    for batch in batches.values():
        batch.header["step_totals"] = total
    return batches


def _sum_totals(totals: list[dict[str, Any]]) -> dict[str, Any]:
    summed = {name: sum(one[name] for one in totals) for name in totals[0] if name != "loss"}
    summed["loss"] = {"tokens": {"count": summed["loss_tokens"], "weight": summed["loss_weight"]}}
    return summed


def _sample(sample: Any, index: int) -> dict[str, Any]:
    """The mapping form, checked, with every entry present."""
    given = dict(sample) if isinstance(sample, Mapping) else {"tokens": sample}
    tokens = given.get("tokens", ())
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise InvalidArgument(f"sample {index}: tokens are {type(tokens).__name__}: expected a sequence of integers")
    tokens = [_whole(f"sample {index}: token", token, -(1 << 31), (1 << 31) - 1) for token in tokens]
    if not tokens or min(tokens) < 0:
        raise InvalidArgument(f"sample {index}: {'no tokens' if not tokens else 'a token below 0'}")
    made = {"labels": list(tokens), "loss_mask": [1] * len(tokens), "weight": 1.0, "stream": "test", "seq": index, "key": b"",
            "source": "default", "tensors": {}} | given | {"tokens": tokens}
    for name in ("labels", "loss_mask"):
        count = len(made[name]) if isinstance(made[name], (Sequence, numpy.ndarray)) and numpy.ndim(made[name]) == 1 else "no sequence of"
        if count != len(tokens):
            raise InvalidArgument(f"sample {index}: {count} {name} for {len(tokens)} tokens: expected one for each")
    made["labels"] = [_whole(f"sample {index}: label", label, -(1 << 31), (1 << 31) - 1) for label in made["labels"]]
    if not isinstance(made["tensors"], Mapping):
        raise InvalidArgument(f"sample {index}: tensors are {type(made['tensors']).__name__}: expected a mapping of names to arrays")
    # Which tokens are predicted: never the first, for nothing stands before it.
    made["targets"] = [t > 0 and bool(made["loss_mask"][t]) and int(made["labels"][t]) != IGNORE for t in range(len(tokens))]
    return made


class _Layout:
    """Rows laid out one position after the other."""

    def __init__(self, width: int, rules: Rules):
        self.width, self.rules, self.rows = _whole("width", width, 1), rules, 0
        self.cells: dict[str, list] = {name: [] for name in ("tokens", "positions", "segment_ids", "labels", "loss_weight")}
        self.cu, self.seq_lens, self.sample_index = [0], [], []
        self.real, self.padded = [0], [0]
        self.table: list[dict[str, Any]] = []
        self.tensors: list[tuple[int, dict[str, Any]]] = []
        self.counts = {"real_tokens": 0, "tail_padding": 0, "gap": 0, "row_padding": 0}
        if width % rules.seg_align:
            raise InvalidArgument(f"width {width} is no multiple of seg_align {rules.seg_align}")

    def slot(self, length: int) -> int:
        """Positions that a sample of that length takes."""
        return -(-length // self.rules.seg_align) * self.rules.seg_align

    def place(self, samples: list[dict[str, Any]]) -> list[list[int]]:
        """In order; the next row begins where a sample does not fit."""
        placement: list[list[int]] = []
        left, cap = 0, self.rules.max_segments
        for index, sample in enumerate(samples):
            slot = self.slot(len(sample["tokens"]))
            if slot > self.width:
                raise InvalidArgument(f"sample {index} of {len(sample['tokens'])} tokens does not fit a row of {self.width}")
            if slot > left or (cap and len(placement[-1]) == cap):
                placement.append([])
                left = self.width
            placement[-1].append(index)
            left -= slot
        return placement

    def add_row(self, samples: list[dict[str, Any]]) -> None:
        used = 0
        for number, sample in enumerate(samples, 1):
            used += self.add_segment(sample, number)
        if used > self.width:
            raise InvalidArgument(f"row {self.rows}: its samples take {used} positions of {self.width}")
        tail = self.width - used
        self.counts["tail_padding" if samples else "row_padding"] += tail
        if samples:
            self.padded[-1] += tail
        else:
            self.real.append(self.real[-1] + self.width)
            self.padded.append(self.padded[-1] + self.width)
        longest = self.rules.pad_segment - self.rules.pad_segment % self.rules.seg_align
        while tail:
            self.add_padding(min(tail, longest))
            tail -= min(tail, longest)
        self.rows += 1

    def add_segment(self, sample: dict[str, Any], number: int) -> int:
        tokens, targets = sample["tokens"], sample["targets"]
        length, slot = len(tokens), self.slot(len(tokens))
        weight = float(sample["weight"]) / (1 if self.rules.loss_weight == "token" else max(1, sum(targets)))
        self.tensors.append((len(self.cells["tokens"]), sample["tensors"]))
        for q in range(slot):
            predicted = q + 1 if self.rules.labels == "shifted" else q  # the token this position's label is
            loss = predicted < length and q < length and targets[predicted]
            self.put(tokens[q] if q < length else self.rules.pad_id, q, number if q < length else 0,
                     int(sample["labels"][predicted]) if loss else IGNORE, weight if loss else 0.0)
        self.boundary(length, len(self.table))
        self.real.append(self.real[-1] + length)
        self.padded.append(self.cu[-1])
        self.table.append({"stream": sample["stream"], "seq": sample["seq"], "source": sample["source"], "key": sample["key"],
                           "length": length, "loss_weight": weight, "loss_tokens": sum(targets)})
        self.counts["real_tokens"] += length
        self.counts["gap"] += slot - length
        return slot

    def add_padding(self, positions: int) -> None:
        for q in range(positions):
            self.put(self.rules.pad_id, q, 0, IGNORE, 0.0)
        self.boundary(0, -1)

    def put(self, token: int, position: int, segment: int, label: int, weight: float) -> None:
        for name, value in zip(self.cells, (token, position, segment, label, weight)):
            self.cells[name].append(value)

    def boundary(self, length: int, sample: int) -> None:
        self.cu.append(len(self.cells["tokens"]))
        self.seq_lens.append(length)
        self.sample_index.append(sample)

    def fill_segments(self) -> None:
        """fixed_segments: empty ones up to the fixed number."""
        want = self.rules.fixed_segments
        if want and len(self.seq_lens) > want:
            raise InvalidArgument(f"{len(self.seq_lens)} segments, fixed_segments is {want}")
        while len(self.seq_lens) < want:
            self.boundary(0, -1)
        for offsets in (self.real, self.padded):
            offsets += [offsets[-1]] * (want + 1 - len(offsets)) if want else []

    def batch(self, header: Mapping[str, Any]) -> Batch:
        self.fill_segments()
        arrays = {name: numpy.array(cells, "float32" if name == "loss_weight" else "int32").reshape(self.rows, self.width)
                  for name, cells in self.cells.items()}
        for name, values in (("cu_seqlens", self.cu), ("seq_lens", self.seq_lens), ("sample_index", self.sample_index),
                             ("cu_seqlens_real", self.real), ("cu_seqlens_padded", self.padded)):
            arrays[name] = numpy.array(values, "int32")
        arrays |= self.named_tensors()
        count, weight = sum(label != IGNORE for label in self.cells["labels"]), float(arrays["loss_weight"].sum(dtype="float64"))
        lengths = [row["length"] for row in self.table]
        totals = self.counts | {"overlap_tokens": 0, "samples": len(lengths), "segments": len(lengths), "patches": 0,
                                "attention_cost": sum(n * n for n in lengths), "loss_tokens": count, "loss_weight": weight,
                                "loss": {"tokens": {"count": count, "weight": weight}}}
        made = {"label_convention": self.rules.labels, "loss_weight_policy": self.rules.loss_weight, "pad_id": self.rules.pad_id,
                "fixed_segments": self.rules.fixed_segments, "n_real_segments": len(lengths), "batch_totals": totals,
                "samples": self.table}
        return Batch.from_arrays(arrays, made | dict(header))

    def named_tensors(self) -> dict[str, numpy.ndarray]:
        """Token axis: laid out as [R, W, ...], zero elsewhere; else stacked, one row a sample."""
        made: dict[str, numpy.ndarray] = {}
        names = {name: numpy.asarray(value) for _, tensors in self.tensors for name, value in tensors.items()}
        for name, example in names.items():
            values = [(at, numpy.asarray(tensors[name])) for at, tensors in self.tensors]
            per_token = all(value.ndim and len(value) == row["length"] for (_, value), row in zip(values, self.table))
            if not per_token:
                made[name] = numpy.stack([value for _, value in values])
                continue
            flat = numpy.zeros((self.rows * self.width, *example.shape[1:]), example.dtype)
            for at, value in values:
                flat[at:at + len(value)] = value
            made[name] = flat.reshape(self.rows, self.width, *example.shape[1:])
        return made
