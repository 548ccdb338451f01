"""Is the packed loss the sum over the samples? Runs every sample alone and adds up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy

from packd.adapters.common import plain
from packd.batch import Batch
from packd.errors import Error, InvalidArgument
from packd.verify._outputs import by_position
from packd.verify._samples import Place, alone, places, real_positions


@dataclass
class LossReport:
    """packed: the batch's loss; alone: the sum over single samples; samples: (place, in the pack or None, alone) for each.

    targets: labels with loss; counted: what the batch's header says. str() explains, True where they agree.
    """
    packed: float
    alone: float
    tolerance: float
    samples: list[tuple[Place, float | None, float]]
    targets: int
    counted: int
    wrong: list[Place] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """The two sums agree, each sample's too, and so do the counts."""
        return not self.wrong and self.targets == self.counted and _close(self.packed, self.alone, self.tolerance, len(self.samples))

    __bool__ = ok.fget

    def __str__(self) -> str:
        text = (f"packed loss {self.packed:.9g}, sum over {len(self.samples)} samples alone {self.alone:.9g}, {self.targets} targets "
                f"(header: {self.counted})")
        rows = [f"{place}: {packed:.9g} in the pack, {single:.9g} alone" for place, packed, single in self.samples
                if place in self.wrong and packed is not None]
        return "\n  ".join([text] + rows[:8])


class LossDiffers(Error):
    """packd.verify.loss found another sum; `report` has it all."""

    def __init__(self, text: str, report: LossReport | None = None, **facts: Any):
        super().__init__(text, **facts)
        self.report = report


def loss(forward: Callable[[Batch], Any], batch: Batch, *, tolerance: float = 1e-5, check: bool = True) -> LossReport:
    """Compares the packed loss with the sum of each sample's own; raises LossDiffers where they part.

    forward(batch): given a packd.Batch (batch.torch() has its tensors), either the batch's weighted loss, one number, not divided
    by anything that depends on this batch alone (dividing by the step's total, batch.loss_denominator, is fine: samples alone keep
    it); or losses by position, aligned with the batch's labels, [T], [1, T] or [R, W], which are then multiplied by loss_weight
    here, and compared sample by sample as well.
    A loss that sees its own targets passes: packd.verify.shift finds those.
    tolerance: relative, of the sum. check: False returns the report whatever it says.
    InvalidArgument: no losses, or not one for each position (BAD_SHAPE), a loss that counts and is not finite (LOSS_NOT_FINITE).
    """
    batch = plain(batch)
    packed, by_token = total(forward(batch), batch)
    samples, wrong = [], []
    for place in places(batch):
        only = alone(batch, place)
        single, _ = total(forward(only), only)
        own = float(by_token[real_positions(place)].sum()) if by_token is not None else None
        samples.append((place, own, single))
        if own is not None and not _close(own, single, tolerance, 1):
            wrong.append(place)
    report = LossReport(packed, sum(single for _, _, single in samples), tolerance, samples, int((batch["labels"] != -100).sum()),
                        batch.header["batch_totals"]["loss_tokens"], wrong)
    if check and not report.ok:
        raise LossDiffers(str(report), report, step=batch.header.get("step"), reason="LOSS_DIFFERS")
    return report


def total(value: Any, batch: Batch) -> tuple[float, numpy.ndarray | None]:
    """(sum, weighted losses by position or None) of what forward returned."""
    size = value.numel() if hasattr(value, "numel") else numpy.size(value)
    if value is None or isinstance(value, (str, bytes)):
        raise InvalidArgument(f"forward returned {type(value).__name__}: expected the loss, a number, or losses by position", reason="BAD_SHAPE")
    if size == 1 and batch["tokens"].size > 1:
        return _finite(_number(value), "the batch"), None
    flat = by_position(value, batch)
    losses = flat.double().cpu().numpy() if hasattr(flat, "numel") else numpy.asarray(flat, "float64")
    weights = batch["loss_weight"].reshape(-1).astype("float64")
    weighted = numpy.where(weights != 0, losses.reshape(-1) * weights, 0.0)
    if not numpy.isfinite(weighted).all():
        at = int((~numpy.isfinite(weighted)).argmax())
        row, position = divmod(at, batch["tokens"].shape[1])
        place = next((place for place in places(batch) if place.start <= at < place.start + place.length), None)
        _finite(float(losses.reshape(-1)[at]), f"row {row} position {position}" + (f" ({place})" if place else ""))
    return float(weighted.sum()), weighted


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"forward returned {type(value).__name__} {value!r:.100}: expected the loss, a number, or losses by position",
                              reason="BAD_SHAPE") from error


def _finite(value: float, where: str) -> float:
    """InvalidArgument (LOSS_NOT_FINITE): a NaN or an infinity, which would compare as anything."""
    if not math.isfinite(value):
        raise InvalidArgument(f"forward returned the loss {value} for {where}: expected finite losses, nothing can be compared with it",
                              reason="LOSS_NOT_FINITE")
    return value


def _close(first: float, second: float, tolerance: float, terms: int) -> bool:
    return abs(first - second) <= tolerance * max(abs(first), abs(second), 1e-30) + 1e-12 * terms
