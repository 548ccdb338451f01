"""A producer's side: one stream of samples, each durable exactly once.

    with packd.Producer("127.0.0.1:7070", stream="docs", content_id="docs-v3") as producer:
        for sample in producer.remaining(samples):      # what an earlier run has left
            producer.put(tokens=sample)                 # waits while too much is under way

put() copies the sample and returns; libpackd's thread makes blocks and sends them within the server's credit. What is taken and not
yet durable is bounded by buffer_bytes; put() waits while that is full. Leaving the `with` flushes; leaving it by an exception does not
wait: the next run goes on at the server's next_seq.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from packd import _lib, _ragged, errors
from packd._calls import Calls
from packd.media import Filler, Span

_log = logging.getLogger("packd")
_FLOAT32_MAX = float(numpy.finfo("float32").max)


class Reject(NamedTuple):
    """Samples the server refused: `count` of them from seq on. They keep their seq and are in no batch."""
    seq: int
    count: int
    reason: str
    text: str


def _shut(lib: Any, pointer: Any, forks: int, callback: Any) -> None:
    """Gives up what is not durable and frees; `callback` only has to live until then."""
    if _lib.fork_count() == forks:
        lib.packd_producer_close(pointer, 0, _lib.library()[0].NULL)


def _record(ffi: Any) -> numpy.dtype:
    """struct packd_sample for NumPy, pointers as uint64."""
    at = lambda *path: ffi.offsetof("struct packd_sample", *path)
    fields = {"tokens": ("u8", at("tokens")), "count": ("u8", at("count")), "labels": ("u8", at("labels")),
              "loss_mask": ("u8", at("loss_mask")), "has_weight": ("u1", at("has_weight")), "weight": ("f4", at("weight")),
              "key_size": ("u8", at("key", "size")), "key_data": ("u8", at("key", "data")), "group_size": ("u8", at("group", "size")),
              "group_data": ("u8", at("group", "data")), "version": ("u8", at("version")),
              "tensors": ("u8", at("tensors")), "tensor_count": ("u8", at("tensor_count"))}
    return numpy.dtype({"names": list(fields), "formats": [f for f, _ in fields.values()], "offsets": [o for _, o in fields.values()],
                        "itemsize": ffi.sizeof("struct packd_sample")})


class Producer:
    """One stream, open from construction to close(). All methods may be called from any thread; the blocking ones take turns, and their
    timeout counts the wait for it. Inside a callback they are refused (InvalidArgument, NESTED_CALL).

    Args:
        server: host:port or unix:/path; None: $PACKD_SERVER, else 127.0.0.1:7070.
        stream, feed, source: names; source None: "default".
        content_id: what is being read (a digest, a version), at most 255 bytes; another one on an existing stream is refused.
        vocab_size, tokenizer_digest (at most 64 bytes): of the tokens pushed; streams of a feed that disagree are refused. 0, empty: not said.
        log_id: the log expected; None: any.
        buffer_bytes: samples taken and not yet durable, at most. block_bytes, linger_ms: size and age at which a block is sent.
        allow_shifted_looking_labels: labels that look shifted already are refused otherwise.
        timeout: seconds that each call may take where not told otherwise.
        on_reject: called with a Reject inside put (of earlier samples), flush and close, which raise what it raises; None: a RuntimeWarning for
            the first one, and for each a line to the logger "packd". Samples are refused after put has returned; stats()["rejected"] counts those known so
            far, all of them after flush.
        on_progress: called inside put and flush with stats() every progress_seconds.

    Raises:
        InvalidArgument, NotFound (feed), AlreadyExists (other content_id), Mismatch (other source, feed, vocabulary, log), Timeout (no
        server), Forked, LibraryNotFound.
    """

    def __init__(self, server: str | None = None, *, stream: str, feed: str = "default", source: str | None = None,
                 content_id: str | None = None, vocab_size: int = 0, tokenizer_digest: bytes = b"", log_id: str | None = None, buffer_bytes: int = 0,
                 block_bytes: int = 0, linger_ms: int = 0, allow_shifted_looking_labels: bool = False,
                 timeout: float = _lib.DEFAULT_TIMEOUT, token: str | None = None, producer: str | None = None,
                 on_reject: Callable[[Reject], None] | None = None, on_progress: Callable[[dict], None] | None = None,
                 progress_seconds: float = 1.0):
        self._timeout, self._on_reject, self._on_progress = timeout, on_reject, on_progress
        self._progress_seconds, self._progress_at = progress_seconds, time.monotonic()
        self._rejects: deque[Reject] = deque()
        self._warned = False
        self.server, self.feed, self.stream = _lib.server_address(server), feed, stream
        self._ffi, self._lib = _lib.opening()
        self._record = _record(self._ffi)
        texts = {"server": self.server, "token": _lib.server_token(token), "feed": feed, "stream": stream, "source": source,
                 "producer": producer, "content_id": content_id, "log_id": log_id}
        numbers = {"vocab_size": vocab_size, "buffer_bytes": buffer_bytes, "block_bytes": block_bytes, "linger_ms": linger_ms,
                   "allow_shifted_looking_labels": bool(allow_shifted_looking_labels),
                   "timeout_ms": max(1, _lib.milliseconds(timeout))}
        options = _lib.Options("packd_producer_options", texts, numbers)
        digest = options.keep("tokenizer_digest", tokenizer_digest)
        options.c.tokenizer_digest, options.c.tokenizer_digest_bytes = digest, len(digest)
        self._open(options)

    def _open(self, options: _lib.Options) -> None:
        ffi, lib, forks, rejects = self._ffi, self._lib, _lib.fork_count(), self._rejects

        def note(_ctx, reject):
            rejects.append(Reject(reject.seq, reject.count, _lib.text(ffi, reject.reason), _lib.text(ffi, reject.text)))

        callback = ffi.callback("void(void *, const struct packd_reject *)", note)
        options.c.on_reject = callback
        c = self._c = _lib.opened(lib.packd_producer_open, options, "packd_producer", lambda c: _shut(lib, c, forks, callback), self._facts())
        self._calls = Calls(f"producer of stream {self.stream}", lambda: lib.packd_producer_stop(c),
                            functools.partial(lib.packd_producer_close, c, 0, ffi.NULL), self._facts(), callback)
        weakref.finalize(self, self._calls.close)

    def _facts(self) -> dict[str, Any]:
        return {"server": self.server, "feed": self.feed, "stream": self.stream}

    def _turn(self, call: str, end: float, function: Callable[[], Any]) -> Any:
        return self._calls.turn("put", call, end, function)

    def _call(self, function: Callable[[int, Any], int], end: float, takes: bool = False) -> None:
        """function(slice_ms, error) until it is done; raises what went wrong, after telling rejects and progress.

        takes: once it has succeeded nothing is told, the next call does: a callback that raises would make what was taken look refused.
        """
        error = self._ffi.new("struct packd_error *")

        def slice_of(slice_ms):
            code = function(slice_ms, error)
            if code != 0 or not takes:
                self._tell()
            return code

        if takes:
            self._tell()
        code = _lib.in_slices(slice_of, end)
        if code == errors.Interrupted.code:
            self._calls.check_open()
        if code != 0:
            raise _lib.raised(self._ffi, error, code, **self._facts())

    def _tell(self) -> None:
        """The user's callbacks, on this thread."""
        self._tell_rejects()
        if self._on_progress and time.monotonic() - self._progress_at >= self._progress_seconds:
            self._progress_at = time.monotonic()
            self._on_progress(self.stats())

    def _tell_rejects(self) -> None:
        while self._rejects:
            reject = self._rejects.popleft()
            if self._on_reject:
                self._on_reject(reject)
            else:
                _log.warning("stream %s: samples %d to %d refused: %s: %s", self.stream, reject.seq, reject.seq + reject.count - 1,
                             reject.reason, reject.text)
                self._warn_once(reject)  # last: a filter may make it an exception

    def _warn_once(self, reject: Reject) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"packd at {self.server} refuses samples of stream {self.stream}, they are not stored: {reject.reason}: {reject.text}; "
                          'on_reject= is told of each, stats()["rejected"] counts them', RuntimeWarning, stacklevel=2)

    def put(self, tokens: Any, *, labels: Any = None, loss_mask: Any = None, weight: float | None = None, key: bytes | str | None = None,
            group: bytes | str | None = None, version: int = 0, tensors: Mapping[str, Any] | None = None,
            spans: Sequence[Span] = (), merge: int = 0, timeout: float | None = None) -> int:
        """Takes one sample (copied) and returns its seq. Waits only while the buffer is full.

        Args:
            tokens: one-dimensional, integers of 0 or more that fit int32. int32 and contiguous is not converted.
            labels, loss_mask: one entry a token; they describe token i as a target, unshifted. labels None: the tokens.
            weight: of its targets in the loss, finite and 0 or more; None: 1.
            key, group: at most 255 bytes each; text is stored as UTF-8. version: 0 or more.
            tensors: named tensors: arrays of one element a token, or packd.Tensor for everything else. spans: media spans. merge: patches per token of
                all spans, a square; 0: not checked.

        Raises InvalidArgument (TOKEN_RANGE, BAD_DTYPE, BAD_SHAPE, BAD_TENSOR, BAD_SPAN, EMPTY_SAMPLE, BAD_WEIGHT, KEY_TOO_LONG),
        LimitExceeded (TOO_LARGE), Timeout (the buffer stayed full), Fenced. Of a failed call nothing was taken, also where a
        callback raises: it is told of what happened before this call. (Only a signal's handler may raise behind it: next_seq tells.)
        """
        array = _ragged.as_int32("tokens", tokens, 0)
        kept = [array]
        sample = self._ffi.new("struct packd_sample *", {"count": len(array), "version": self._version(version)})
        sample.tokens = self._ffi.from_buffer("int32_t[]", array)
        if labels is not None:
            kept.append(_ragged.as_int32("labels", labels))
            _ragged.same_length("labels", kept[-1], len(array))
            sample.labels = self._ffi.from_buffer("int32_t[]", kept[-1])
        if loss_mask is not None:
            kept.append(_ragged.as_mask("loss_mask", loss_mask))
            _ragged.same_length("loss_mask", kept[-1], len(array))
            sample.loss_mask = self._ffi.from_buffer("uint8_t[]", kept[-1])
        if weight is not None:
            sample.has_weight, sample.weight = True, self._weight(weight)
        for name, value in (("key", key), ("group", group)):
            if value is not None:
                kept.append(_ragged.as_bytes(name, value))
                cell = getattr(sample, name)
                cell.size, cell.data = len(kept[-1]), self._ffi.from_buffer("uint8_t[]", kept[-1])
        if tensors or spans:
            filler = Filler(self._ffi)
            kept.append(filler)
            filler.spans(sample, spans, merge)
            filler.tensors(sample, tensors or {}, len(array))
        end = _lib.deadline(timeout, self._timeout)
        return self._turn("put", end, lambda: self._put(sample, end))

    def _put(self, sample: Any, end: float) -> int:
        self._call(lambda ms, error: self._lib.packd_producer_put(self._c, sample, ms, error), end, takes=True)
        return self._lib.packd_producer_next_seq(self._c) - 1

    def put_many(self, tokens: Any, *, lengths: Any = None, offsets: Any = None, labels: Any = None, loss_mask: Any = None,
                 weights: Any = None, keys: Sequence[bytes | str] | None = None, groups: Sequence[bytes | str] | None = None,
                 versions: Any = None, tensors: Mapping[str, Any] | None = None, timeout: float | None = None) -> int:
        """Takes many samples in order and returns the seq of the first; a sample that the server refuses later keeps its seq.

        Args:
            tokens: all samples' tokens in one array, with `lengths` (n entries) or `offsets` (n + 1 entries from 0); or a list of
                samples, without either.
            labels, loss_mask: laid out as tokens. weights, versions: n numbers. keys, groups: n byte strings. tensors: token tensors, laid out as tokens.
            timeout: seconds without any sample being taken.

        Raises as put. The attribute `taken` of whatever is raised, by a callback too, says how many were taken before it.
        """
        if lengths is None and offsets is None:
            values, counts = _ragged.joined("tokens", tokens, lambda name, part: _ragged.as_int32(name, part, 0))
            labels = _ragged.joined_alike("labels", labels, _ragged.as_int32, counts) if labels is not None else None
            loss_mask = _ragged.joined_alike("loss_mask", loss_mask, _ragged.as_mask, counts) if loss_mask is not None else None
            if counts.size and counts.min() < 1:
                raise errors.InvalidArgument(f"tokens[{int(counts.argmin())}] is empty: leave it out", reason="EMPTY_SAMPLE")
        else:
            values = _ragged.as_int32("tokens", tokens, 0)
            counts = _ragged.lengths_of(len(values), lengths, offsets)
        starts = numpy.cumsum(counts) - counts
        records, kept = numpy.zeros(len(counts), self._record), [values]
        records["tokens"], records["count"] = self._address(values) + 4 * starts.astype("uint64"), counts
        for name, given, convert, size in (("labels", labels, _ragged.as_int32, 4), ("loss_mask", loss_mask, _ragged.as_mask, 1)):
            if given is not None:
                kept.append(convert(name, given))
                _ragged.same_length(name, kept[-1], len(values))
                records[name] = self._address(kept[-1]) + size * starts.astype("uint64")
        if weights is not None:
            records["has_weight"], records["weight"] = 1, self._per_sample("weights", weights, len(counts), "float32")
        if versions is not None:
            records["version"] = self._per_sample("versions", versions, len(counts), "uint64")
        for name, given in (("key", keys), ("group", groups)):
            if given is not None:
                kept.append(self._put_bytes(records, name, given))
        if tensors:
            kept.append(Filler(self._ffi))
            c = kept[-1].token_tensors(tensors, counts)
            size = len(tensors) * self._ffi.sizeof("struct packd_tensor")
            records["tensors"] = int(self._ffi.cast("uintptr_t", c)) + size * numpy.arange(len(counts), dtype="uint64")
            records["tensor_count"] = len(tensors)
        return self._put_records(records, timeout)

    def _put_records(self, records: numpy.ndarray, timeout: float | None) -> int:
        done, taken = 0, self._ffi.new("size_t *")
        base = self._ffi.cast("struct packd_sample *", self._address(records))
        end = _lib.deadline(timeout, self._timeout)

        def some(slice_ms, error):
            nonlocal done
            code = self._lib.packd_producer_put_many(self._c, base + done, len(records) - done, slice_ms, taken, error)
            done += taken[0]
            taken[0] = 0
            return code

        def all_of_them():
            nonlocal end
            first = self.next_seq
            while done < len(records):
                before = done
                try:
                    self._call(some, end, takes=True)
                except BaseException as error:
                    if isinstance(error, errors.Timeout) and done > before:
                        end = _lib.deadline(timeout, self._timeout)
                        continue
                    error.taken = done + taken[0]  # the latter: an exception of a signal's handler right behind the call
                    raise
            return first

        return self._turn("put_many", end, all_of_them)

    @staticmethod
    def _address(array: numpy.ndarray) -> int:
        return array.__array_interface__["data"][0]

    @staticmethod
    def _weight(weight: float) -> float:
        try:
            number = float(weight)
        except (OverflowError, TypeError, ValueError) as error:
            raise errors.InvalidArgument(f"weight {weight!r:.100}: expected a number", reason="BAD_WEIGHT") from error
        if not 0 <= number <= _FLOAT32_MAX:
            raise errors.InvalidArgument(f"weight {number!r}: expected a finite number of 0 or more that fits float32", reason="BAD_WEIGHT")
        return number

    @staticmethod
    def _version(version: int) -> int:
        return _lib.whole("version", version)

    @staticmethod
    def _per_sample(name: str, values: Any, count: int, dtype: str) -> numpy.ndarray:
        array = _ragged.as_array(name, values)
        if len(array) != count:
            raise errors.InvalidArgument(f"{name} has {len(array)} entries for {count} samples: expected one for each", reason="BAD_SHAPE")
        if array.size and dtype == "uint64" and (array.dtype.kind not in "iu" or int(array.min()) < 0):
            raise errors.InvalidArgument(f"{name}: expected integers of 0 or more", reason="BAD_RANGE")
        if array.size and dtype == "float32" and array.dtype.kind not in "fiub":
            raise errors.InvalidArgument(f"{name} has dtype {array.dtype}: expected numbers", reason="BAD_WEIGHT")
        with numpy.errstate(over="ignore"):  # infinite then, which libpackd refuses by the sample
            return array.astype(dtype)

    def _put_bytes(self, records: numpy.ndarray, name: str, given: Sequence[bytes | str]) -> numpy.ndarray:
        if not isinstance(given, Sequence | numpy.ndarray) or isinstance(given, (str, bytes)):
            raise errors.InvalidArgument(f"{name}s is {type(given).__name__}: expected a list of bytes or str", reason="BAD_SHAPE")
        if len(given) != len(records):
            raise errors.InvalidArgument(f"{name}s has {len(given)} entries for {len(records)} samples: expected one for each",
                                         reason="BAD_SHAPE")
        cells = [_ragged.as_bytes(f"{name}s[{at}]", value) for at, value in enumerate(given)]
        sizes = numpy.array([len(cell) for cell in cells], "uint64")
        data = numpy.frombuffer(b"".join(cells) or b"\0", "uint8")
        records[name + "_size"] = sizes
        records[name + "_data"] = self._address(data) + numpy.cumsum(sizes) - sizes
        return data

    def remaining(self, samples: Iterable[Any]) -> Iterator[Any]:
        """`samples`, read from the beginning, without those that the server has from an earlier run of this stream."""
        return itertools.islice(samples, self.next_seq, None)

    def push(self, samples: Iterable[Mapping[str, Any]]) -> int:
        """Puts every sample (put's arguments as a mapping; see packd.readers) that an earlier run has not.

        Returns how many were put, those included that the server refuses: after flush, less the growth of stats()["rejected"], that is how many
        are stored.
        """
        count = 0
        for sample in self.remaining(samples):
            self.put(**sample)
            count += 1
        return count

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything put is durable. Raises Timeout with what the server says, Fenced."""
        self._flush("flush", _lib.deadline(timeout, self._timeout))

    def _flush(self, call: str, end: float) -> None:
        self._turn(call, end, lambda: self._call(lambda ms, error: self._lib.packd_producer_flush(self._c, ms, error), end))

    def end_stream(self, timeout: float | None = None) -> None:
        """flush, then ends the stream for good."""
        end = _lib.deadline(timeout, self._timeout)
        self._turn("end_stream", end, lambda: self._call(lambda ms, error: self._lib.packd_producer_end_stream(self._c, ms, error), end))

    def end_feed(self, timeout: float | None = None) -> bool:
        """flush, then ends the whole feed, whoever else pushes to it. True: it had ended before."""
        end = _lib.deadline(timeout, self._timeout)
        self._flush("end_feed", end)
        return self._turn("end_feed", end, lambda: self._end_feed(end))

    def _end_feed(self, end: float) -> bool:
        ffi = self._ffi
        error, already = ffi.new("struct packd_error *"), ffi.new("bool *")
        code = self._calls.in_thread(lambda: self._lib.packd_producer_end_feed(self._c, _lib.left_ms(end), already, error))
        if code == errors.Interrupted.code:
            self._calls.check_open()
        if code != 0:
            raise _lib.raised(ffi, error, code, **self._facts())
        return bool(already[0])

    def stats(self) -> dict[str, Any]:
        """struct packd_producer_stats: next_seq, first_seq, durable_seq, rejected, rejected_before, duplicates, buffered_bytes, waiting, log_id, ..."""
        stats = self._ffi.new("struct packd_producer_stats *")
        self._calls.looking(lambda: self._lib.packd_producer_stats(self._c, stats))
        return _lib.plain(self._ffi, stats[0])

    @property
    def next_seq(self) -> int:
        """Seq of the next sample put; at first, where the server stood."""
        return self._calls.looking(lambda: self._lib.packd_producer_next_seq(self._c))

    def interrupt(self) -> None:
        """Ends the blocking call of another thread with Interrupted."""
        self._calls.looking(lambda: self._lib.packd_producer_interrupt(self._c))

    def close(self, timeout: float | None = None) -> None:
        """flush with this timeout (0: give up what is not durable), then frees in any case. A repeat is fine.

        Ends the calls of other threads. Inside a callback: what is not durable is given up, and the call around it frees when it returns.
        """
        inside = self._calls.mine
        try:
            if timeout != 0 and not self._calls.closed and not inside:
                self.flush(timeout)
        finally:
            self._calls.close()
            if not inside:
                self._tell_rejects()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        self.close(None if kind is None else 0)
