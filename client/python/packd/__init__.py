"""packd for Python: push samples to a packd server, and train on the packed batches it hands out.

    with packd.Producer("127.0.0.1:7070", stream="docs") as producer:
        producer.put(tokens=[17, 4, 9])

    with packd.Job("127.0.0.1:7070", job="train") as job:
        for batch in job:
            batch["tokens"]          # NumPy int32 [rows, width], a view of the receive buffer

packd.torch has the data set for PyTorch, packd.adapters the forms that other libraries want, packd.verify the checks of a model's
isolation. Importing packd needs NumPy alone: libpackd is loaded by the first Producer or Job, torch by packd.torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from packd.batch import Batch, Sample, Samples
from packd.errors import (AlreadyExists, Closed, DataLoss, Denied, EndOfFeed, Error, Fenced, Forked, InternalError, Interrupted,
                          InvalidArgument, IOFailed, LibraryNotFound, LimitExceeded, Mismatch, NotFound, OutOfMemory, OutOfRange,
                          Timeout, Unauthenticated, Unavailable, Unsupported)
from packd.job import Job
from packd.media import Span, Tensor
from packd.producer import Producer

__version__ = "0.1.0"

_errors = [Error, AlreadyExists, Closed, DataLoss, Denied, EndOfFeed, Fenced, Forked, InternalError, Interrupted, InvalidArgument,
           IOFailed, LibraryNotFound, LimitExceeded, Mismatch, NotFound, OutOfMemory, OutOfRange, Timeout, Unauthenticated,
           Unavailable, Unsupported]
__all__ = ["Batch", "Job", "Producer", "Sample", "Samples", "Span", "Tensor", *(kind.__name__ for kind in _errors)]

_MODULES = ("adapters", "readers", "readers_lerobot", "testing", "torch", "verify")


def __getattr__(name: str) -> Any:
    """packd.torch and the like, imported when they are first named."""
    if name in _MODULES:
        return importlib.import_module("packd." + name)
    raise AttributeError(f"module 'packd' has no attribute {name!r}")
