"""Errors of the package: one class for each kind of failure that a program may want to handle apart.

Every error is a packd.Error. Where they are known it carries the server, feed, job or stream, step and dp_rank that were
concerned, libpackd's code, the gRPC status code of the call that failed (0: none did), and the reason, a stable UPPER_SNAKE
word of the wire contract such as SEQ_GAP. The text says all of that for people; programs look at the attributes.
"""

from __future__ import annotations

GRPC_NAMES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
              "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
              "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED")


class Error(Exception):
    """Whatever fails in packd.

    Attributes: code (libpackd's negative PACKD_E* code, 0 for an error of the Python package itself), reason (str), grpc_code
    (int), and server, feed, job, stream, step, dp_rank, each None where it does not apply.
    """

    code = 0
    final = True  # trying again cannot help

    def __init__(self, text: str, *, reason: str = "", grpc_code: int = 0, server: str | None = None, feed: str | None = None,
                 job: str | None = None, stream: str | None = None, step: int | None = None, dp_rank: int | None = None):
        super().__init__(text)
        self.reason, self.grpc_code = reason, grpc_code
        self.server, self.feed, self.job, self.stream = server, feed, job, stream
        self.step, self.dp_rank = step, dp_rank

    @property
    def grpc_name(self) -> str:
        """"UNAVAILABLE" for 14; "" where no call failed."""
        return GRPC_NAMES[self.grpc_code] if 0 < self.grpc_code < len(GRPC_NAMES) else ""

    def __str__(self) -> str:
        text = super().__str__()
        facts = [f"{name} {value}" for name in ("server", "feed", "job", "stream", "dp_rank", "step")
                 if (value := getattr(self, name)) is not None and not _names(text, name, value)]
        if self.grpc_name:
            facts.append("gRPC " + self.grpc_name)
        if self.reason and self.reason not in text:
            facts.append("reason " + self.reason)
        return f"{text} [{', '.join(facts)}]" if facts else text

    def __reduce__(self):
        """Errors cross process borders (DataLoader workers) with all they know."""
        return _rebuild, (type(self), super().__str__(), self.__dict__)


def _names(text: str, name: str, value: object) -> bool:
    """Whether the text says it already: "job train", "packd at HOST:PORT"."""
    return str(value) in text if name == "server" else f"{name} {value}" in text


def _rebuild(kind, text, state):
    error = kind(text)
    error.__dict__.update(state)
    return error


class InvalidArgument(Error, ValueError):
    """An argument, or a sample, that cannot be right."""
    code = -1


class OutOfMemory(Error, MemoryError):
    """No memory for what was asked."""
    code = -2


class LimitExceeded(Error):
    """Over a limit of the server, which is named."""
    code = -3


class EndOfFeed(Error):
    """Behind the last batch: not a failure, and the same step for every rank."""
    code = -6


class NotFound(Error):
    """Unknown feed, job or stream."""
    code = -7


class AlreadyExists(Error):
    """The stream exists with another content_id."""
    code = -8


class Mismatch(Error):
    """Two sides disagree (world size, rank, log, vocabulary ...); both values are named."""
    code = -9


class Fenced(Error):
    """A newer producer of the stream, or a newer world of the job, has taken over."""
    code = -10


class OutOfRange(Error):
    """The step is no longer in the log; the lowest that is there is named."""
    code = -11


class DataLoss(Error):
    """Bytes that do not match their digest or break the batch contract."""
    code = -12


class IOFailed(Error, OSError):
    """A file or a socket of this machine failed."""
    code = -13
    __str__ = Error.__str__


class Unavailable(Error):
    """The server drains or cannot be reached. The object goes on trying; call again."""
    code = -14
    final = False


class Timeout(Error, TimeoutError):
    """The call's time is over. Nothing is lost: call again. The text says what was waited for."""
    code = -15
    final = False
    __str__ = Error.__str__


class Interrupted(Error):
    """Another thread called interrupt(). Nothing is lost."""
    code = -16
    final = False


class Unsupported(Error):
    """The server or libpackd does not offer this."""
    code = -18


class Denied(Error):
    """The credentials do not allow this."""
    code = -19


class Unauthenticated(Error):
    """No credentials, or wrong ones."""
    code = -20


class InternalError(Error):
    """A bug, here or in the server."""
    code = -22


class LibraryNotFound(Error, ImportError):
    """libpackd.so, or cffi, is missing; the text lists where it was looked for."""
    __str__ = Error.__str__


class Closed(Error):
    """The object has been closed."""


class Forked(Error):
    """An object, or libpackd itself, was in use before the process forked."""


_BY_CODE = {kind.code: kind for kind in list(globals().values())
            if isinstance(kind, type) and issubclass(kind, Error) and kind.code != 0}


def class_for(code: int) -> type[Error]:
    """The class for a PACKD_E* code; Error itself for one that this package does not know."""
    return _BY_CODE.get(code, Error)
