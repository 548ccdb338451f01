"""The calls under way on one object of libpackd: who takes turns with whom, and when the object may be freed.

libpackd's close must be the last call on an object, and nobody may be inside another one then. So every use of the C pointer stands
between enter() and leave(), whoever closes only marks the object closed and stops what runs, and the last to leave frees it:

    close() by another thread    stops the calls under way, waits until they have left (CLOSE_SECONDS at most), frees
    close() inside a callback    returns at once; the call that the callback runs in frees when it returns, and whoever uses the object
                                 from then on gets Closed
    a call left alone by Ctrl-C  counts until its thread has come back from C

Calls that must not run beside each other name a lane and wait for it until their own deadline. A thread that has the lane already (it
is inside a callback) is refused: the call would wait for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from packd import _lib, errors

CLOSE_SECONDS = 10.0


class Calls:
    """Guards one C object. All methods may be called from any thread, close() also by a finalizer."""

    def __init__(self, name: str, stop: Callable[[], None], free: Callable[[], None], facts: Mapping[str, Any]):
        """name: "job train", for texts. stop: makes the blocking calls return, at any time before free. facts: of the errors."""
        self._name, self._stop, self._free, self._facts = name, stop, free, dict(facts)
        self._forks = _lib.fork_count()
        self._change = threading.Condition()  # re-entrant: a signal's handler may close
        self._inside: dict[Any, int] = {}     # calls by thread, or by the token of one on a thread of its own
        self._lanes: dict[str, tuple[int, str, str]] = {}  # lane: (thread, its name, the call)
        self._closed = self._freeing = self._freed = False

    @property
    def closed(self) -> bool:
        """Whether close() has been called; the object may still be there for those inside."""
        return self._closed

    def enter(self, who: Any = None) -> None:
        """Begins a use of the C object by this thread (or `who`). Closed, Forked."""
        if self._forks != _lib.fork_count():  # before the lock: another thread may have held it at the fork
            raise errors.Forked(f"{self._name} was opened before this process was forked", **self._facts)
        who = threading.get_ident() if who is None else who
        with self._change:
            self.check_open()
            self._inside[who] = self._inside.get(who, 0) + 1

    def leave(self, who: Any = None) -> None:
        """Ends it; the last one to leave a closed object frees it."""
        who = threading.get_ident() if who is None else who
        with self._change:
            self._inside[who] -= 1
            if not self._inside[who]:
                del self._inside[who]
            last = self._closed and not self._inside and not self._freeing
            self._freeing |= last
        if last:
            try:
                self._free()
            finally:
                with self._change:
                    self._freed = True
                    self._change.notify_all()

    @property
    def mine(self) -> bool:
        """Whether this thread is inside a call: asked by a callback."""
        return threading.get_ident() in self._inside

    def check_open(self) -> None:
        """Closed."""
        if self._closed:
            raise errors.Closed(f"{self._name} has been closed", **self._facts)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """A use that does not block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def turn(self, lane: str, call: str, end: float) -> Iterator[None]:
        """A use that has `lane` for itself. end: by time.monotonic(). Timeout: names who has it; InvalidArgument (NESTED_CALL)."""
        self.enter()
        try:
            self._take(lane, call, end)
            try:
                yield
            finally:
                with self._change:
                    del self._lanes[lane]
                    self._change.notify_all()
        finally:
            self.leave()

    def _take(self, lane: str, call: str, end: float) -> None:
        me, begun = threading.get_ident(), time.monotonic()
        with self._change:
            while lane in self._lanes:
                holder, holder_name, held = self._lanes[lane]
                if holder == me:
                    raise errors.InvalidArgument(f"{self._name}: {call}() inside a callback of {held}() would wait for itself: let the callback "
                                                 "return and call it then", reason="NESTED_CALL", **self._facts)
                left = end - time.monotonic()
                if left <= 0:
                    raise errors.Timeout(f"{self._name}: {call}() has waited {time.monotonic() - begun:.1f} s for the {held}() of thread {holder_name!r} "
                                         "to end: they take turns", reason="BUSY", **self._facts)
                self._change.wait(left)
                self.check_open()
            self._lanes[lane] = me, threading.current_thread().name, call

    def in_thread(self, function: Callable[[], int]) -> int:
        """_lib.in_thread(function), a use of its own that counts until function has returned, also where nobody waits any more."""
        token = object()
        self.enter(token)

        def counted() -> int:
            try:
                return function()
            finally:
                self.leave(token)

        try:
            return _lib.in_thread(counted)
        except _lib.NoThread:
            self.leave(token)
            raise

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Marks it closed, stops what runs, and waits until the last one has left and freed it; inside a callback it does not wait.

        A thread that does not leave within `seconds` (its callback does not return) frees the object later. A repeat is fine.
        """
        if self._forks != _lib.fork_count():
            return
        end, me = time.monotonic() + seconds, object()
        with self._change:
            first = not self._closed
            self._closed = True
            if first:
                self._inside[me] = 1
            self._change.notify_all()  # whoever waits for a turn
        if first:
            try:
                self._stop()
            finally:
                self.leave(me)
        with self._change:
            while not self._freed and not self.mine and (left := end - time.monotonic()) > 0:
                self._change.wait(left)
