"""libpackd, loaded by the first object that needs it; cffi in ABI mode.

The C header itself is what cffi reads, so there is no second description of the structs that could drift from it. cffi lets go of
the GIL around every call. libpackd.so is looked for in this order:

    $PACKD_LIBRARY                       a path
    beside this file                     a wheel carries it
    client/ and bazel-bin/client/        above this file: a built source tree

A library of another version than the header's is refused.

libpackd must not be used on both sides of a fork: `library()` refuses in a child whose parent had already opened something.
"""

from __future__ import annotations

import math
import os
import operator
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packd import errors

SLICE_MS = 100          # a blocking call comes back this often, so that signals (Ctrl-C) are seen
DEFAULT_TIMEOUT = 60.0  # seconds, as in libpackd

_HERE = Path(__file__).resolve().parent
_loaded: tuple[Any, Any] | None = None
_used_in: int | None = None  # the fork_count when libpackd was first used
_forks = 0                   # how many forks lie between this process and the one that imported packd


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def fork_count() -> int:
    """A number that is another one in a child made by fork; cheaper than os.getpid()."""
    return _forks


def _candidates() -> list[Path]:
    if os.environ.get("PACKD_LIBRARY"):
        return [Path(os.environ["PACKD_LIBRARY"])]
    tree = Path(__file__).absolute().parents[3]
    source = _HERE.parents[2]
    return [_HERE / "libpackd.so", tree / "client" / "libpackd.so", source / "bazel-bin" / "client" / "libpackd.so"]


def _header() -> tuple[str, str]:
    """packd.h without what cffi's parser does not take (preprocessor, comments, the C++ bracket), and the version that it is of."""
    for path in (_HERE / "packd.h", _HERE.parents[1] / "include" / "packd.h"):
        if path.exists():
            whole = path.read_text()
            text = re.sub(r"/\*.*?\*/", "", whole, flags=re.S)
            text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
            return re.sub(r"^#.*$", "", text, flags=re.M), re.search(r'#define PACKD_VERSION_STRING "([^"]+)"', whole)[1]
    raise errors.LibraryNotFound(f"packd.h is not beside {_HERE}: the package is incomplete; install its wheel again")


def _load() -> tuple[Any, Any]:
    try:
        import cffi
    except ImportError as error:
        raise errors.LibraryNotFound("packd needs cffi: pip install cffi, or apt-get install python3-cffi") from error
    paths = _candidates()
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise errors.LibraryNotFound(f"libpackd.so is in none of {', '.join(map(str, paths))}: build it (bazel build "
                                     "//client:libpackd.so) or set PACKD_LIBRARY to its path")
    ffi = cffi.FFI()
    header, version = _header()
    ffi.cdef(header)
    for name in re.findall(r"^struct (\w+) \{", header, flags=re.M):  # now: one that a signal's handler interrupts later stays half made
        ffi.sizeof(f"struct {name}")
    try:
        lib = ffi.dlopen(str(path))
        found = text(ffi, lib.packd_version())
    except (OSError, AttributeError) as error:
        raise errors.LibraryNotFound(f"{path} cannot be loaded as libpackd: {error}") from error
    if found != version:  # its structs may be laid out otherwise
        raise errors.LibraryNotFound(f"{path} is libpackd {found}, and this package was written for {version}: install both from one release, or set "
                                     "PACKD_LIBRARY to a library of that version")
    return ffi, lib


def library() -> tuple[Any, Any]:
    """(ffi, lib). LibraryNotFound; Forked: the parent process had used libpackd before it forked this one."""
    global _loaded
    if _used_in is not None and _used_in != _forks:
        raise errors.Forked("libpackd was in use in the parent process before it forked this one, and gRPC does not survive a fork: "
                            "open Producers and Jobs in one process only, or start workers with the method 'spawn'")
    if _loaded is None:
        _loaded = _load()
    return _loaded


def opening() -> tuple[Any, Any]:
    """library(), for a call that starts threads: from here on this process must not be forked with packd in it."""
    global _used_in
    loaded = library()
    _used_in = _forks
    return loaded


def text(ffi: Any, pointer: Any) -> str:
    """A C string; "" for NULL."""
    return ffi.string(pointer).decode(errors="replace") if pointer else ""


def raised(ffi: Any, error: Any, code: int, **facts: Any) -> errors.Error:
    """The exception for a failed call."""
    return errors.class_for(code)(text(ffi, error.text) or f"libpackd: error {code}", reason=text(ffi, error.reason),
                                  grpc_code=int(error.grpc_code), **facts)


class Options:
    """A C struct of options, filled; it keeps the strings alive that it points to."""

    def __init__(self, kind: str, texts: Mapping[str, str | None], numbers: Mapping[str, int]):
        """texts: None stays NULL. InvalidArgument: a number that does not fit its field, a text with a NUL in it."""
        self.ffi, _ = library()
        self.c = self.ffi.new(f"struct {kind} *")
        self._kept: list[Any] = []
        for name, value in texts.items():
            if value is not None:
                setattr(self.c, name, self._kept_text(name, value))
        for name, value in numbers.items():
            try:
                setattr(self.c, name, operator.index(value))
            except (OverflowError, TypeError) as error:
                raise errors.InvalidArgument(f"{name}={value!r}: {error}", reason="BAD_RANGE") from error

    def _kept_text(self, name: str, value: str) -> Any:
        try:
            data = os.fsencode(value) if isinstance(value, (str, os.PathLike)) else None
        except UnicodeEncodeError:  # half of a surrogate pair
            data = None
        if data is None or b"\0" in data:
            shown = "" if name == "token" else f"={value!r}"
            raise errors.InvalidArgument(f"{name}{shown}: expected text that UTF-8 can hold, without NUL", reason="BAD_NAME")
        self._kept.append(self.ffi.new("char[]", data))
        return self._kept[-1]

    def keep(self, name: str, data: bytes) -> Any:
        """A copy of bytes that lives as long as these options. InvalidArgument: no bytes."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise errors.InvalidArgument(f"{name} is {type(data).__name__}: expected bytes", reason="BAD_DTYPE")
        self._kept.append(self.ffi.new("uint8_t[]", list(bytes(data))))  # a list: of bytes cffi makes one with a NUL behind it
        return self._kept[-1]


def plain(ffi: Any, struct: Any) -> dict[str, Any]:
    """A C struct as a dict: numbers, text of char arrays, lists of other arrays, dicts of structs."""
    return {name: _plain_field(ffi, getattr(struct, name), field.type) for name, field in ffi.typeof(struct).fields}


def _plain_field(ffi: Any, value: Any, kind: Any) -> Any:
    if kind.kind == "struct":
        return plain(ffi, value)
    if kind.kind == "array":
        return text(ffi, value) if kind.item.cname == "char" else list(value)
    return value


class NoThread(errors.OutOfMemory):
    """No thread could be started; nothing was called."""


def in_thread(call: Callable[[], int], undo: Callable[[], None] | None = None) -> int:
    """call() on a thread of its own, so that the waiting caller sees signals although the C call cannot be cut into slices.

    call() must end by itself, by its timeout; what it raises is raised here. Where the wait is ended by an exception (KeyboardInterrupt), the call
    goes on alone, and undo() takes back what it made once it has returned 0. NoThread.
    """
    done, lock, codes, alone, raised_there = threading.Event(), threading.Lock(), [], [], []

    def run():
        try:
            code = call()
            with lock:
                codes.append(code)
                undone = bool(alone) and code == 0
            if undone and undo:
                undo()
        except BaseException as error:  # pylint: disable=broad-exception-caught
            raised_there.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=run, name="packd-call", daemon=True).start()
    except RuntimeError as error:
        raise NoThread(f"no thread for a call: {error}", reason="THREAD") from error
    try:
        done.wait()
    except BaseException:
        with lock:
            alone.append(True)
            finished = codes == [0]
        if finished and undo:
            undo()
        raise
    if raised_there:
        raise raised_there[0]
    return codes[0]


def opened(function: Any, options: Options, kind: str, shut: Callable[[Any], None], facts: Mapping[str, Any]) -> Any:
    """The object that an open function makes; shut(pointer) closes one that nobody waits for any more."""
    ffi = options.ffi
    out, error = ffi.new(f"struct {kind} **"), ffi.new("struct packd_error *")
    code = in_thread(lambda: function(options.c, out, error), lambda: shut(out[0]))
    if code != 0:
        raise raised(ffi, error, code, **facts)
    return out[0]


def server_address(server: str | None) -> str:
    """What was asked for, else $PACKD_SERVER, else packd's default."""
    return server or os.environ.get("PACKD_SERVER") or "127.0.0.1:7070"


def server_token(token: str | None) -> str | None:
    """Bearer token: what was asked for, else $PACKD_TOKEN."""
    return token or os.environ.get("PACKD_TOKEN") or None


def whole(name: str, value: Any, least: int = 0, most: int = (1 << 64) - 1) -> int:
    """The value as an int. InvalidArgument: it is no integer, or out of range."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise errors.InvalidArgument(f"{name} {value!r}: expected an integer", reason="BAD_RANGE") from error
    if not least <= number <= most:
        raise errors.InvalidArgument(f"{name} {number}: expected {least} to {most}", reason="BAD_RANGE")
    return number


def milliseconds(seconds: float | None, default: float = DEFAULT_TIMEOUT) -> int:
    """A timeout in seconds as libpackd's milliseconds; None: the default. InvalidArgument: negative, NaN or infinite."""
    seconds = default if seconds is None else seconds
    try:
        seconds = float(seconds)
    except (OverflowError, TypeError, ValueError) as error:
        raise errors.InvalidArgument(f"timeout {seconds!r}: expected seconds", reason="BAD_RANGE") from error
    if not (math.isfinite(seconds) and seconds >= 0):
        raise errors.InvalidArgument(f"timeout {seconds!r}: expected seconds, 0 or more; there is no infinite wait", reason="BAD_RANGE")
    return math.ceil(seconds * 1000)


def deadline(timeout: float | None, default: float) -> float:
    """The end of a call, by time.monotonic(). InvalidArgument as milliseconds()."""
    return time.monotonic() + milliseconds(timeout, default) / 1000


def left_ms(end: float) -> int:
    """Milliseconds until a deadline, at least 0."""
    return max(0, math.ceil((end - time.monotonic()) * 1000))


def in_slices(call: Callable[[int], int], end: float, timed_out: int = errors.Timeout.code) -> int:
    """Repeats call(slice_ms) until it is no longer a timeout or the deadline `end` has passed; its last code.

    Between two slices the interpreter runs signal handlers, so that KeyboardInterrupt comes through; libpackd's calls lose nothing by a timeout.
    """
    while True:
        left = left_ms(end)
        code = call(min(left, SLICE_MS))
        if code != timed_out or left <= SLICE_MS:
            return code
