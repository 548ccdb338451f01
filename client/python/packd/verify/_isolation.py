"""Does any sample of a pack reach another? Changes samples and looks at everybody else's output.

    all samples whose index has bit b = v change ──> every sample with bit b = 1 - v must give the same bits     (2 log2 S runs,
    once with other last tokens, once with other content                                                          every pair met)
    a difference ──> samples change one at a time ──> the pairs that leak
    padding changes ──> no sample may notice
    each sample alone at the start of a row ──> the same output but for rounding: positions restart, no boundary cuts it

A sample that only earlier ones reach shows when those change; a mask forgotten in a bidirectional model shows both ways. Positions
that run on through the row, and a boundary inside a sample, change nothing when others change: only the sample alone shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from packd.adapters.common import plain
from packd.batch import Batch
from packd.errors import Error, InvalidArgument
from packd.verify import _outputs as outputs
from packd.verify._samples import Changer, Place, alone, places, real_positions


@dataclass(frozen=True)
class Leak:
    """The target's output changed when the source's tokens did."""
    source: Place
    target: Place
    change: str         # "last token" or "content"
    difference: float   # largest
    position: int       # the first of the target's positions (from 0) that changed

    def __str__(self) -> str:
        return (f"{self.source} reaches {self.target}: another {self.change} of the first changes the second from its position "
                f"{self.position} on, by up to {self.difference:.3g}")


@dataclass
class IsolationReport:
    """What isolation found. True where nothing is wrong; str() explains.

    leaks: pairs, the first max_pairs; leaking: all samples that another one reaches; positions: samples that come out otherwise
    where they do not begin their row, with the difference; cut: samples with a boundary inside; padding: samples that padding
    reaches; silent: samples whose output does not depend on their own tokens; unrepeatable: largest difference between two runs of
    the same batch; nans: real positions that are no number; runs: forward calls.
    """
    samples: int
    tolerance: float
    leaks: list[Leak] = field(default_factory=list)
    leaking: list[Place] = field(default_factory=list)
    positions: list[tuple[Place, float]] = field(default_factory=list)
    cut: list[Place] = field(default_factory=list)
    padding: list[Place] = field(default_factory=list)
    silent: list[Place] = field(default_factory=list)
    unrepeatable: float = 0.0
    nans: int = 0
    runs: int = 0

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return not (self.leaking or self.positions or self.cut or self.padding or self.silent or self.unrepeatable or self.nans)

    __bool__ = ok.fget

    def causes(self) -> list[str]:
        """What is likely wrong, most likely first."""
        found = []
        if self.unrepeatable:
            found.append(f"two runs of one batch differ by {self.unrepeatable:.3g}: switch off dropout (model.eval()), or state a "
                         "tolerance")
        if self.nans:
            found.append(f"{self.nans} real positions are NaN")
        found += self._leak_causes()
        if self.positions:
            found.append("positions do not restart: samples that do not begin their row come out otherwise than alone: use the "
                         "batch's positions")
        if self.cut:
            found.append("a boundary lies inside samples: their first token no longer reaches their last (boundaries of another "
                         "row or batch?)")
        if self.padding:
            found.append("padding reaches samples: use seq_lens for attention that is not causal, and every boundary of cu_seqlens")
        if self.silent:
            found.append("the output does not depend on the sample's tokens: does forward use the batch it is given?")
        return found

    def _leak_causes(self) -> list[str]:
        if not self.leaking:
            return []
        found = []
        if any(leak.source.row != leak.target.row for leak in self.leaks):
            found.append("samples reach other rows: row starts are boundaries too")
        same_row = [leak for leak in self.leaks if leak.source.row == leak.target.row]
        if any(leak.source.start > leak.target.start for leak in same_row):
            found.append("later samples reach earlier ones: the boundaries are ignored (no mask at all)")
        elif same_row:
            found.append("earlier samples reach later ones: the mask is causal over the whole row, or a layer carries its state over "
                         "(seq_idx)")
        if same_row and all(leak.target.row > 0 for leak in same_row):
            found.append("row 0 is clean and later rows are not: the boundaries of row 0 may be used for all rows")
        return found

    def __str__(self) -> str:
        if self.ok:
            return f"isolated: {self.samples} samples, {self.runs} runs, tolerance {self.tolerance:g}"
        lines = [f"not isolated: {len(self.leaking)} of {self.samples} samples are reached by another"] + self.causes()
        lines += [str(leak) for leak in self.leaks[:8]]
        lines += [f"{place} differs by {gap:.3g} from the same sample alone" for place, gap in self.positions[:8]]
        lines += [f"{place} is cut" for place in self.cut[:8]]
        return "\n  ".join(lines)


class NotIsolated(Error):
    """packd.verify.isolation found something; `report` has it all."""

    def __init__(self, text: str, report: IsolationReport | None = None, **facts: Any):
        super().__init__(text, **facts)
        self.report = report


def isolation(forward: Callable[[Batch], Any], batch: Batch, *, tolerance: float = 0.0, alone_tolerance: float | None = None,
              vocab_size: int | None = None, frozen: Sequence[int] = (), alone_samples: int = 16, max_pairs: int = 64, seed: int = 0,
              check: bool = True) -> IsolationReport:
    """Runs the model on changed copies of the batch; raises NotIsolated where a sample reaches another, or its place matters.

    forward(batch): given a packd.Batch (batch.torch() has its tensors), the model's output (logits, hidden states, losses) for every
    position, [T, ...], [1, T, ...] or [R, W, ...]; NumPy or torch, on any device; it should not drop out (model.eval()). Losses by
    position do as well as logits.
    tolerance: how far outputs may move when another sample changes; 0: the same bits, what one kernel over one shape gives.
    alone_tolerance: how far a sample may lie from itself alone, relative to its largest value; None: by dtype, 1e-4 for float32.
    vocab_size: tokens to exchange with; None: those of the batch. frozen: tokens that stay (media placeholders).
    alone_samples: how many samples are run alone. max_pairs: leaking pairs to name. check: False returns the report in any case.
    InvalidArgument: fewer than two samples, an output without one entry a position.
    """
    batch = plain(batch)
    run = _Run(forward, batch, tolerance, Changer(batch, vocab_size, frozen, seed))
    report = run.report
    base = run.base
    again = outputs.difference(base, run(batch))
    report.unrepeatable = float(max((again[real_positions(place)].max() for place in run.places)))
    if report.unrepeatable <= tolerance:
        report.unrepeatable = 0.0
        run.groups()
        run.padding()
        if report.leaking:
            run.pairs(max_pairs)
        run.alone(alone_samples, outputs.rounding(base) if alone_tolerance is None else alone_tolerance)
    if check and not report.ok:
        raise NotIsolated(str(report), report, step=batch.header.get("step"), dp_rank=batch.header.get("dp_rank"),
                          reason="NOT_ISOLATED")
    return report


class _Run:
    """One check: the base output, and what changes do to it."""

    def __init__(self, forward: Callable[[Batch], Any], batch: Batch, tolerance: float, change: Changer):
        self.forward, self.batch, self.change = forward, batch, change
        self.places = places(batch)
        if len(self.places) < 2:
            raise InvalidArgument(f"the batch holds {len(self.places)} samples: isolation needs two, better several in every row")
        self.report = IsolationReport(len(self.places), tolerance)
        self.base = self(batch)
        nans = outputs.not_finite(self.base)
        self.report.nans = int(sum(nans[real_positions(place)].sum() for place in self.places))

    def __call__(self, batch: Batch) -> Any:
        self.report.runs += 1
        return outputs.by_position(self.forward(batch), batch)

    def moved(self, positions: numpy.ndarray) -> list[tuple[float, int]]:
        """For each sample: how far its output moved when those tokens changed, and its first position that moved (-1: none)."""
        gaps = outputs.difference(self.base, self(self.change(positions)))
        found = []
        for place in self.places:
            own = gaps[real_positions(place)]
            over = numpy.flatnonzero(own > self.report.tolerance)
            found.append((float(own.max()), int(over[0]) if len(over) else -1))
        return found

    @staticmethod
    def part(place: Place, change: str) -> numpy.ndarray:
        positions = real_positions(place)
        return positions[-1:] if change == "last token" else positions

    def groups(self) -> None:
        """Every ordered pair in 4 log2 S runs."""
        reached, heard = set(), set()
        for change in ("last token", "content"):
            for bit in range((len(self.places) - 1).bit_length()):
                for value in (0, 1):
                    sources = {i for i in range(len(self.places)) if i >> bit & 1 == value}
                    moved = self.moved(numpy.concatenate([self.part(self.places[i], change) for i in sorted(sources)]))
                    reached |= {i for i, (_, at) in enumerate(moved) if at >= 0 and i not in sources}
                    heard |= {i for i in sources if moved[i][1] >= 0}
        self.report.leaking = [self.places[i] for i in sorted(reached)]
        self.report.silent = [place for i, place in enumerate(self.places) if i not in heard]

    def padding(self) -> None:
        positions = numpy.flatnonzero(self.batch["segment_ids"].reshape(-1) == 0)
        if len(positions):
            self.report.padding = [place for place, (_, at) in zip(self.places, self.moved(positions)) if at >= 0]

    def pairs(self, max_pairs: int) -> None:
        """Who reaches whom: one sample at a time, until max_pairs are found."""
        for change in ("last token", "content"):
            named = {(leak.source, leak.target) for leak in self.report.leaks}
            for source in self.places:
                if len(self.report.leaks) >= max_pairs:
                    return
                for target, (gap, at) in zip(self.places, self.moved(self.part(source, change))):
                    if target is not source and at >= 0 and (source, target) not in named:
                        self.report.leaks.append(Leak(source, target, change, gap, at))

    def alone(self, count: int, tolerance: float) -> None:
        """Samples that nobody reaches must not depend on where they lie; some that begin their row and some that do not."""
        clean = [place for place in self.places if place not in self.report.leaking and place not in self.report.padding]
        later_first = sorted(clean, key=lambda place: place.number == 1)
        for place in later_first[:count]:
            only = alone(self.batch, place)
            output, here = self(only), real_positions(place)
            gap = float(outputs.difference(self.base[here], output[:place.length]).max())
            if gap <= tolerance * max(1e-30, float(outputs.magnitude(self.base[here]).max())):
                continue
            if self.is_cut(place, only, output):
                self.report.cut.append(place)
            else:
                self.report.positions.append((place, gap))

    def is_cut(self, place: Place, only: Batch, output: Any) -> bool:
        """Whether its first token reaches its last one alone but not in the pack."""
        if place.length < 2:
            return False
        changed = Changer(only, None, (), 0) if len(numpy.unique(only["tokens"][only["segment_ids"] > 0])) > 1 else None
        packed = outputs.difference(self.base, self(self.change(numpy.array([place.start]))))[place.start + place.length - 1]
        if changed is None or packed > self.report.tolerance:
            return False
        single = outputs.difference(output, self(changed(numpy.array([0]))))[place.length - 1]
        return bool(single > self.report.tolerance)
