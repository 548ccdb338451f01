"""The calls under way on one object of libpackd: who takes turns with whom, and when the object may be freed.

libpackd's close must be the last call on an object, and nobody may be inside another one then. So every use of the C pointer is a
function given to looking() or turn(), whoever closes only marks the object closed and stops what runs, and the last to leave frees it:

    close() by another thread    stops the calls under way, waits until they have left (CLOSE_SECONDS at most), frees
    close() inside a callback    returns at once; the call that the callback runs in frees when it returns, and whoever uses the object
                                 from then on gets Closed
    a call left alone by Ctrl-C  counts until its thread has come back from C

Calls that must not run beside each other name a lane and wait for it until their own deadline. A thread that has the lane already (it
is inside a callback) is refused: the call would wait for itself.

A signal's handler may raise between any two steps of Python, also in a `finally`. So a use counts as long as its own lock is locked, by a
`with` on the bare lock, which CPython enters and leaves without looking for signals, and it has its lane no longer than that. Tidying up
and waking others behind it may be missed: whoever comes next tidies up, and waits look again every WAIT_SECONDS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from packd import _lib, errors

CLOSE_SECONDS = 10.0
WAIT_SECONDS = 0.1

Result = TypeVar("Result")


class Calls:
    """Guards one C object. All methods may be called from any thread, close() also by a finalizer."""

    def __init__(self, name: str, stop: Callable[[], None], free: Callable[[], None], facts: Mapping[str, Any], kept: Any):
        """name: "job train", for texts. stop: makes the blocking calls return, at any time before free. facts: of the errors.

        free: a function in C (functools.partial of one): no signal's handler runs before it then. kept: what must live until it has returned.
        """
        self._name, self._stop, self._free, self._facts = name, stop, free, dict(facts)
        self._kept = kept
        self._forks = _lib.fork_count()
        self._guard = threading.RLock()           # re-entrant: a signal's handler may close
        self._inside: dict[Any, int | None] = {}  # thread by the lock of its use, under way while that is locked; None: a close
        self._lanes: dict[str, tuple[Any, int, str, str]] = {}  # lane: (the lock of its use, thread, its name, the call)
        self._waiting: set[Any] = set()           # locks that are released to wake who waits
        self._closed = self._freeing = self._freed = False

    @property
    def closed(self) -> bool:
        """Whether close() has been called; the object may still be there for those inside."""
        return self._closed

    @property
    def mine(self) -> bool:
        """Whether this thread is inside a call: asked by a callback."""
        me = threading.get_ident()
        return any(thread == me and lock.locked() for lock, thread in list(self._inside.items()))

    def check_open(self) -> None:
        """Closed."""
        if self._closed:
            raise errors.Closed(f"{self._name} has been closed", **self._facts)

    def looking(self, function: Callable[[], Result]) -> Result:
        """function(), a use that does not block. Closed, Forked."""
        return self._use(lambda _lock: function())

    def turn(self, lane: str, call: str, end: float, function: Callable[[], Result]) -> Result:
        """function(), a use that has `lane` for itself. end: by time.monotonic(). Timeout: names who has it; InvalidArgument (NESTED_CALL)."""
        def taken(lock):
            self._take(lane, lock, call, end)
            return function()

        return self._use(taken)

    def _use(self, function: Callable[[Any], Result]) -> Result:
        if self._forks != _lib.fork_count():  # before any lock: another thread may have held it at the fork
            raise errors.Forked(f"{self._name} was opened before this process was forked", **self._facts)
        self.check_open()
        lock = threading.Lock()
        try:
            with lock:
                self._inside[lock] = threading.get_ident()
                self.check_open()  # again: whoever closes marks it before looking who is inside
                return function(lock)
        finally:
            self._left()

    def _take(self, lane: str, lock: Any, call: str, end: float) -> None:
        me, name, begun = threading.get_ident(), threading.current_thread().name, time.monotonic()
        while True:
            with self._guard:
                holder, thread, thread_name, held = self._lanes.get(lane, (None, 0, "", ""))
                if holder is None or not holder.locked():
                    self._lanes[lane] = lock, me, name, call
                    return
            if thread == me:
                raise errors.InvalidArgument(f"{self._name}: {call}() inside a callback of {held}() would wait for itself: let the callback "
                                             "return and call it then", reason="NESTED_CALL", **self._facts)
            left = end - time.monotonic()
            if left <= 0:
                raise errors.Timeout(f"{self._name}: {call}() has waited {time.monotonic() - begun:.1f} s for the {held}() of thread {thread_name!r} "
                                     "to end: they take turns", reason="BUSY", **self._facts)
            self._wait(left, holder.locked)
            self.check_open()

    def _wait(self, seconds: float, still: Callable[[], bool]) -> None:
        """Until somebody leaves or closes, WAIT_SECONDS at most; not at all where `still` is no longer so."""
        waker = threading.Lock()
        waker.acquire()
        self._waiting.add(waker)
        try:
            if still():
                waker.acquire(timeout=min(seconds, WAIT_SECONDS))
        finally:
            self._waiting.discard(waker)

    def _wake(self) -> None:
        while self._waiting:
            try:
                self._waiting.pop().release()
            except KeyError:  # another thread has woken the last one
                return

    def _left(self) -> None:
        """Behind a use: forgets those that are over, wakes who waits, and frees a closed object that nobody is inside of."""
        with self._guard:
            for lock in [lock for lock in list(self._inside) if not lock.locked()]:
                self._inside.pop(lock, None)
            for lane in [lane for lane, (lock, *_) in list(self._lanes.items()) if not lock.locked()]:
                self._lanes.pop(lane, None)
            if self._closed and not self._inside and not self._freeing:
                try:
                    self._freeing = True
                    self._free()
                finally:
                    self._freed = True
        self._wake()

    def in_thread(self, function: Callable[[], int]) -> int:
        """_lib.in_thread(function), a use of its own that counts until function has returned, also where nobody waits any more."""
        return _lib.in_thread(lambda: self.looking(function))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Marks it closed, stops what runs, and waits until the last one has left and freed it; inside a callback it does not wait.

        A thread that does not leave within `seconds` (its callback does not return) frees the object later. A repeat is fine.
        """
        if self._forks != _lib.fork_count():
            return
        end, lock = time.monotonic() + seconds, threading.Lock()
        with lock:
            with self._guard:
                self._inside[lock] = None
                self._closed = True
                freeing = self._freeing
            self._wake()
            if not freeing:
                self._stop()
        self._left()
        while not self._freed and not self.mine and (left := end - time.monotonic()) > 0:
            self._wait(left, lambda: not self._freed)
            self._left()
