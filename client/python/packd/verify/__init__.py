"""Checks of your own model on your own device: does packing change what it learns?

    packd.verify.isolation(lambda batch: model(**hf(batch)).logits, batch)     # no sample reaches another, and its place is no matter
    packd.verify.loss(lambda batch: losses(model, batch), batch)               # the packed loss is the sum over the samples
    packd.verify.shift(lambda batch: losses(model, batch), batch)              # and no target is seen by the logits that predict it
    packd.verify.probe(flash_attn_varlen_func, batch, dtype="bfloat16", device="cuda")     # exact counts through the kernel
    packd.verify.structure(batch)                                              # the arrays alone; a list of broken rules

Each raises, with a report that says who is concerned and what the likely cause is, and returns the report where all is well. Run
them once before a run on a batch with several samples in every row: the first batch of the feed does.
"""

from packd.verify._isolation import IsolationReport, Leak, NotIsolated, isolation
from packd.verify._loss import LossDiffers, LossReport, loss
from packd.verify._probe import ProbeFailed, ProbeReport, probe
from packd.verify._shift import NotShifted, ShiftReport, shift
from packd.verify._structure import structure

__all__ = ["IsolationReport", "Leak", "LossDiffers", "LossReport", "NotIsolated", "NotShifted", "ProbeFailed", "ProbeReport", "ShiftReport",
           "isolation", "loss", "probe", "shift", "structure"]
