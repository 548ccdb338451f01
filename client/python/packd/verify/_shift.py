"""Does the loss of a label come from logits that have not seen its token?

A feed serves labels[p] = the token at p unless it is told `labels: shifted`. A loss of the logits at p against them trains a model to copy
its input: it falls to nothing at once, and neither isolation nor the sum over samples shows anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from packd.adapters.common import plain
from packd.batch import Batch
from packd.errors import Error, InvalidArgument
from packd.verify._loss import total
from packd.verify._samples import Changer, Place, places
from packd.verify._structure import IGNORE

_SAMPLES_MAX = 4


@dataclass
class ShiftReport:
    """checked: (sample, offset of the target in it); copied: those whose loss moves with the target's own token in the input;
    blind: those whose loss does not move with the token before it. convention: the batch's labels. str() explains, True where all is well.
    """
    checked: list[tuple[Place, int]]
    copied: list[tuple[Place, int]]
    blind: list[tuple[Place, int]]
    convention: str

    @property
    def ok(self) -> bool:
        """No target is seen, and what comes before is seen for some."""
        return not self.copied and len(self.blind) < len(self.checked)

    __bool__ = ok.fget

    def __str__(self) -> str:
        if self.ok:
            return f"shifted right: {len(self.checked)} targets of labels served {self.convention}"
        place, offset = (self.copied or self.blind)[0]
        where = f"{place}, token {offset}"
        if not self.copied:
            return (f"the loss of a target does not depend on the token before it ({where}): the labels, served {self.convention}, may be shifted twice, "
                    "by the feed and by the model or its loss, or the loss does not depend on the input at all")
        advice = ("labels[p] is the token at p here (the feed serves labels: unshifted): compare labels[p] with the logits at p - 1 (shift in the "
                  "model, as transformers does with `labels`), or set `labels: shifted` in the feed" if self.convention == "unshifted" else
                  "labels[p] is the token at p + 1 here (labels: shifted): compare them with the logits at p, of a model that is causal")
        return f"the loss of a target changes with the target's own token in the input ({where}): the model learns to copy its input. {advice}"


class NotShifted(Error):
    """packd.verify.shift found a loss that sees its targets; `report` has it all."""

    def __init__(self, text: str, report: ShiftReport | None = None, **facts: Any):
        super().__init__(text, **facts)
        self.report = report


def shift(forward: Callable[[Batch], Any], batch: Batch, *, tolerance: float = 1e-5, vocab_size: int | None = None, frozen: Sequence[int] = (),
          seed: int = 0, check: bool = True) -> ShiftReport:
    """Changes in the input, not in the labels, the token that a label names: its loss must stay, and must move with the token before it.

    forward(batch): as for packd.verify.loss, of a causal model with dropout off. It is run with the loss of one label at a time, at most four.
    tolerance: relative, of the loss. vocab_size, frozen: tokens to change to, and never to change, as for packd.verify.isolation. Raises NotShifted;
    check: False returns the report whatever it says. InvalidArgument: no sample has a target behind its first token; what forward returns is as for
    packd.verify.loss (LOSS_NOT_FINITE: also where only the changed tokens make a loss infinite).
    """
    batch = plain(batch)
    changer = Changer(batch, vocab_size, frozen, seed)
    convention = batch.header["label_convention"]
    targets = _targets(batch, 0 if convention == "unshifted" else -1, changer)
    if not targets:
        raise InvalidArgument("no sample of the batch has a target behind its first token: nothing to check")
    checked, copied, blind = [], [], []
    for place, offset, label in targets:
        at = place.start + offset
        base, own, before = (total(forward(_one_label(b, label)), _one_label(b, label))[0]
                             for b in (batch, changer(numpy.array([at])), changer(numpy.array([at - 1]))))
        checked.append((place, offset))
        if _moved(base, own, tolerance):
            copied.append((place, offset))
        if not _moved(base, before, tolerance):
            blind.append((place, offset))
    report = ShiftReport(checked, copied, blind, convention)
    if check and not report.ok:
        raise NotShifted(str(report), report, step=batch.header.get("step"), reason="NOT_SHIFTED")
    return report


def _targets(batch: Batch, behind: int, changer: Changer) -> list[tuple[Place, int, int]]:
    """(sample, offset of the target, index of its label) of the longest samples: a target in the middle, or the one nearest to it."""
    labels, weights, tokens = (batch[name].reshape(-1) for name in ("labels", "loss_weight", "tokens"))
    found = []
    for place in sorted(places(batch), key=lambda p: -p.length):
        offsets = numpy.arange(1, place.length)
        at = place.start + offsets
        fit = ((labels[at + behind] != IGNORE) & (weights[at + behind] != 0) & ~numpy.isin(tokens[at], changer.frozen)
               & ~numpy.isin(tokens[at - 1], changer.frozen))
        offsets = offsets[fit]
        if len(offsets):
            offset = int(offsets[numpy.argmin(numpy.abs(offsets - place.length // 2))])
            found.append((place, offset, place.start + offset + behind))
    return found[:_SAMPLES_MAX]


def _one_label(batch: Batch, label: int) -> Batch:
    """The batch with that label's loss alone."""
    labels, weights = batch["labels"].copy(), batch["loss_weight"].copy()
    other = numpy.arange(labels.size) != label
    labels.reshape(-1)[other], weights.reshape(-1)[other] = IGNORE, 0
    return Batch.from_arrays(dict(batch.items()) | {"labels": labels, "loss_weight": weights}, batch.header)


def _moved(first: float, second: float, tolerance: float) -> bool:
    return abs(first - second) > tolerance * max(abs(first), abs(second))
