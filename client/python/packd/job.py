"""A trainer's side: one rank of one job, its batches in order.

    with packd.Job("127.0.0.1:7070", job="train", dp_size=8, dp_rank=rank, rows=2) as job:
        for batch in job:                  # ends for every rank behind the same step
            train(batch)
            if saved_a_checkpoint: job.commit(batch.step)

libpackd's own thread receives batches ahead of fetch(), at most `prefetch` of them, so there is no second queue here; it never holds
the GIL. Reconnecting and resuming is libpackd's as well: fetch() either returns the next batch, or says why not.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from packd import _lib, _view, errors
from packd._calls import Calls
from packd.batch import Batch

ARRAYS = {"core": 0, "all": 1}
LABELS = {"any": 0, "unshifted": 1, "shifted": 2}
_START = {"commit": 0, "first": 1, "resume": 2}


class Memory(Protocol):
    """Where payloads shall lie. Both are called from libpackd's thread and from whoever drops a batch; they must not call packd."""

    def allocate(self, size: int, alignment: int) -> int:
        """Address of `size` bytes at a multiple of alignment; 0: none left."""

    def release(self, address: int) -> None:
        """Takes back what allocate gave."""


def _hooks(ffi: Any, memory: Memory) -> tuple[Any, Any]:
    """C functions over `memory`; they must outlive the job and every batch of it."""
    def allocate(_ctx, size, alignment):
        return ffi.cast("void *", memory.allocate(size, alignment))

    def release(_ctx, address, _size):
        memory.release(int(ffi.cast("uintptr_t", address)))

    return (ffi.callback("void *(void *, size_t, size_t)", allocate, error=ffi.NULL),
            ffi.callback("void(void *, void *, size_t)", release))


def _shut(lib: Any, pointer: Any, forks: int, hooks: Any) -> None:
    """The end of a job, at close, when it is forgotten, or when the interpreter ends; `hooks` only has to live until then."""
    if _lib.fork_count() == forks:
        lib.packd_job_close(pointer)


class Job:
    """One data-parallel rank of a job, open from construction to close().

    All methods may be called from any thread. fetch() calls take turns, commit() calls too, and a commit runs beside a fetch; a call's
    timeout counts the wait for its turn. close() ends the calls of other threads and waits until they have returned.
    Inside a callback commit() is fine, fetch() is refused (NESTED_CALL), and close() takes effect when the fetch around it returns:
    it returns the batch that it has, or raises Closed.

    Tensor-, context- and pipeline-parallel peers open the same job with the same dp_rank and receive identical batches.

    Args:
        server: host:port or unix:/path; None: $PACKD_SERVER, else 127.0.0.1:7070.
        job, feed: names.
        dp_size, dp_rank, rows, accum: ranks, this one, packs per batch, micro-steps per step.
        step_packs: packs per step, 0: dp_size * rows * accum. A job keeps it when its world changes.
        segment_multiple: 2 x context-parallel x tensor-parallel size, where that is used.
        world_token: the same for all ranks of one launch, another for the next launch: a new one fences the ranks of the old world.
            None: join the world there is.
        log_id: the log the checkpoint was made with; another one is refused.
        resume_step: last step in the loaded checkpoint; -1: a checkpoint from before the first step. None: as `start` says.
        start: "commit": behind the job's last commit. "first": at the lowest step that the log has.
        steps: stop after so many steps; None: at the feed's end.
        regroup: accept another step_packs than the job has, at its last commit.
        reader: look only; holds nothing in the log.
        labels: "unshifted" or "shifted" to be refused by a feed that does otherwise.
        arrays: "core": arrays that follow from others are rebuilt here. "all": everything travels.
        prefetch, prefetch_bytes: batches received ahead, and their memory.
        timeout: seconds that open, fetch and commit may take where not told otherwise.
        on_waiting: called inside fetch with `waiting` when what the job waits for changes.
        on_commit_needed: called inside fetch when the log fills up: save a checkpoint of the last step and commit() it, right there.
        memory: where payloads lie; None: libpackd's heap.

    Raises:
        InvalidArgument, NotFound (feed), Mismatch (job's spec, rank, log), Fenced (this world has been superseded), LimitExceeded (batch too
        large), OutOfRange (resume too early), Timeout (no server), Forked, LibraryNotFound.
    """

    def __init__(self, server: str | None = None, *, job: str, feed: str = "default", dp_size: int = 1, dp_rank: int = 0, rows: int = 1,
                 accum: int = 1, step_packs: int = 0, segment_multiple: int = 1, world_token: str | None = None,
                 log_id: str | None = None, resume_step: int | None = None, start: str = "commit", steps: int | None = None,
                 regroup: bool = False, reader: bool = False, labels: str = "any", arrays: str = "core", commit_every: int = 0,
                 prefetch: int = 2, prefetch_bytes: int = 1 << 30, timeout: float = _lib.DEFAULT_TIMEOUT, token: str | None = None,
                 client: str | None = None, on_waiting: Callable[[dict], None] | None = None,
                 on_commit_needed: Callable[[dict], None] | None = None, memory: Memory | None = None):
        for name, value, choices in (("labels", labels, LABELS), ("arrays", arrays, ARRAYS), ("start", start, ("commit", "first"))):
            if not isinstance(value, str) or value not in choices:
                raise errors.InvalidArgument(f"{name}={value!r}: expected one of {list(choices)}", reason="BAD_RANGE")
        self._timeout = timeout
        self._on_waiting, self._on_commit_needed = on_waiting, on_commit_needed
        self._waiting_told: Any = None
        self._needed_told: Any = None
        self.server = _lib.server_address(server)
        self.job, self.feed, self.dp_rank = job, feed, dp_rank
        for name, value in (("dp_size", dp_size), ("rows", rows), ("accum", accum), ("segment_multiple", segment_multiple),
                            ("prefetch", prefetch), ("steps", steps)):
            if value is not None:
                _lib.whole(name, value, 1)
        self._ffi, self._lib = _lib.opening()
        self._hooks = _hooks(self._ffi, memory) if memory is not None else None
        if resume_step is not None:
            _lib.whole("resume_step", resume_step, -1)
            start = "resume" if resume_step >= 0 else "first"
        numbers = {"dp_size": dp_size, "dp_rank": dp_rank, "rows": rows, "accum": accum, "step_packs": step_packs,
                   "segment_multiple": segment_multiple, "commit_every": commit_every, "prefetch_batches": prefetch,
                   "prefetch_bytes": prefetch_bytes, "resume_step": max(resume_step or 0, 0), "steps_max": steps or 0}
        numbers |= {"labels": LABELS[labels], "arrays": ARRAYS[arrays], "start": _START[start], "kind": int(reader),
                    "regroup": bool(regroup), "timeout_ms": max(1, _lib.milliseconds(timeout))}
        texts = {"server": self.server, "token": _lib.server_token(token), "feed": feed, "job": job, "client": client,
                 "world_token": world_token, "log_id": log_id}
        self._open(_lib.Options("packd_job_options", texts, numbers))

    def _open(self, options: _lib.Options) -> None:
        if self._hooks:
            options.c.memory_alloc, options.c.memory_free = self._hooks
        lib, forks, hooks = self._lib, _lib.fork_count(), self._hooks
        c = self._c = _lib.opened(lib.packd_job_open, options, "packd_job", lambda c: _shut(lib, c, forks, hooks), self._facts(None))
        self._calls = Calls(f"job {self.job}", lambda: lib.packd_job_stop(c), functools.partial(lib.packd_job_close, c), self._facts(None), hooks)
        weakref.finalize(self, self._calls.close)

    def _facts(self, step: int | None) -> dict[str, Any]:
        return {"server": self.server, "feed": self.feed, "job": self.job, "dp_rank": self.dp_rank, "step": step}

    def fetch(self, timeout: float | None = None) -> Batch:
        """The next batch, in (step, micro) order.

        Raises EndOfFeed behind the last one, Timeout with what the server waits for (nothing is lost: call again; a server that was gone
        and is back is found by itself, BUSY: another thread fetches), Interrupted; Fenced, DataLoss, OutOfRange and other final errors;
        InvalidArgument (NESTED_CALL) inside a callback.
        """
        end = _lib.deadline(timeout, self._timeout)
        return self._calls.turn("fetch", "fetch", end, lambda: self._fetch(end))

    def _fetch(self, end: float) -> Batch:
        ffi = self._ffi
        out, error = ffi.new("const struct packd_batch **"), ffi.new("struct packd_error *")

        def look(slice_ms):
            code = self._lib.packd_job_next(self._c, slice_ms, out, error)
            if code != 0:  # a callback that raises must not cost a batch
                self._tell()
            return code

        self._tell()
        code = _lib.in_slices(look, end)
        if code != 0:
            raise _lib.raised(ffi, error, code, **self._facts(self.info["next_step"]))
        return _view.batch_of(ffi, self._lib, out[0], self._hooks)

    def __iter__(self) -> Iterator[Batch]:
        """fetch() until the feed (or `steps`) ends."""
        while True:
            try:
                batch = self.fetch()
            except errors.EndOfFeed:
                return
            yield batch
            del batch  # or it would live until the next one is here

    def commit(self, step: int, timeout: float | None = None) -> None:
        """States that steps up to `step` are in a saved checkpoint. Monotonic; a repeat is fine.

        Raises InvalidArgument (COMMIT_BEYOND_FETCHED: a step that fetch() has not returned completely), Fenced, Timeout (BUSY: another
        thread commits), InvalidArgument (BAD_RANGE: not an integer; NumPy's and torch's are fine).
        """
        step, end = _lib.whole("commit of step", step), _lib.deadline(timeout, self._timeout)
        self._calls.turn("commit", "commit", end, lambda: self._commit(step, end))

    def _commit(self, step: int, end: float) -> None:
        error = self._ffi.new("struct packd_error *")
        code = self._calls.in_thread(lambda: self._lib.packd_job_commit(self._c, step, _lib.left_ms(end), error))
        if code == errors.Interrupted.code:
            self._calls.check_open()
        if code != 0:
            raise _lib.raised(self._ffi, error, code, **self._facts(step))

    def _tell(self) -> None:
        """The user's callbacks, on this thread, when there is news."""
        if self._on_waiting and not self._calls.closed:
            now = self.waiting
            news = (now["reason_name"], now["streams"], now["sources"]) if now["waiting"] else None
            if news is not None and news != self._waiting_told:
                self._on_waiting(now)
            self._waiting_told = news
        if self._on_commit_needed and not self._calls.closed:
            needed = self.commit_needed
            news = (needed["first_step"], needed["bytes_held"], needed["steps_left"]) if needed["needed"] else None
            if news is not None and news != self._needed_told:
                self._on_commit_needed(needed)
            self._needed_told = news

    def _look(self, kind: str, function: Any) -> dict[str, Any]:
        state = self._ffi.new(f"struct {kind} *")
        self._calls.looking(lambda: function(self._c, state))
        return _lib.plain(self._ffi, state[0])

    @property
    def info(self) -> dict[str, Any]:
        """struct packd_job_info: spec, log_id, generation, first_step, committed_step, returned_step, next_step, ..."""
        return self._look("packd_job_info", self._lib.packd_job_info)

    @property
    def spec(self) -> dict[str, Any]:
        """What the job has agreed on with the server: step_packs, dp_size, rows, accum, seq_len, widths, ..."""
        spec = self.info["spec"]
        return spec | {"labels": _view.LABELS.get(spec["labels"]), "loss_weight": _view.LOSS.get(spec["loss_weight"]),
                       "widths": spec["widths"][:spec["width_count"]]}

    @property
    def waiting(self) -> dict[str, Any]:
        """What fetch() waits for: waiting (bool), reason_name, streams, sources, samples_needed, text, ..."""
        return self._look("packd_waiting", self._lib.packd_job_waiting)

    @property
    def commit_needed(self) -> dict[str, Any]:
        """Whether the log fills up: needed (bool), steps_left, first_step, bytes_held, ..."""
        return self._look("packd_commit_needed", self._lib.packd_job_commit_needed)

    @property
    def end(self) -> dict[str, Any]:
        """Whether the feed has ended: ended (bool), last_step, packs, samples, ..."""
        return self._look("packd_end", self._lib.packd_job_end)

    def interrupt(self) -> None:
        """Ends the fetch() of another thread with Interrupted."""
        self._calls.looking(lambda: self._lib.packd_job_interrupt(self._c))

    def close(self) -> None:
        """Stops and frees; batches stay valid. Ends the calls of other threads first; a commit that Ctrl-C left is given up.

        Inside a callback: the fetch around it frees when it returns. A repeat is fine.
        """
        self._calls.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
