"""Wrong types and wrong values in every argument of the package's public functions: what comes of it is a packd.Error, a TypeError or a ValueError with
a sentence, or a result; never an exception of the package's inside, such as KeyError, AttributeError or struct.error."""

import collections
import itertools
import os
import subprocess
import sys
import tempfile
import unittest

import numpy

import harness
import packd
from packd import adapters, readers, testing, verify

try:
    import torch
except ImportError:
    torch = None
    print("SKIP: misuse of packd.torch: there is no torch")

FEED = {"name": "default", "seq_len": 64, "window": 32}
WRONG = [None, True, -1, 1 << 70, 3.5, float("nan"), float("inf"), "x", "", "a\0b", "\udcff\ud800", b"\xff\0", [], [None], [[1], [2, 3]], ["a"], (1, 2, 3), {},
         {"a": 1}, {1: 2}, set(), object(), object, len, numpy.zeros((2, 2)), numpy.array(["a"]), numpy.array([1.5]), numpy.array(7), numpy.array([object()])]
FINE = (packd.Error, TypeError, ValueError, OverflowError)


def told(error):
    """Whether the exception says something that a stranger can use."""
    return isinstance(error, FINE) and len(str(error)) > 8


class Calls:
    """Calls a function with one argument wrong at a time; `raised` lists what was not told as it should be."""

    def __init__(self, allowed=()):
        self.raised, self.count, self.allowed = [], 0, allowed

    def one(self, name, function, good, argument, wrong):
        self.count += 1
        try:
            made = function(**{**good, argument: wrong})
            if isinstance(made, collections.abc.Iterator):
                list(itertools.islice(made, 100))
            if hasattr(made, "close"):
                made.close()
        except self.allowed:
            pass
        except Exception as error:  # pylint: disable=broad-except
            if not told(error):
                self.raised.append(f"{name}({argument}={wrong!r}): {type(error).__name__}: {error}")

    def each(self, name, function, good, arguments=None, wrongs=WRONG):
        for argument in arguments or good:
            for wrong in wrongs:
                self.one(name, function, good, argument, wrong)


class MisuseTest(unittest.TestCase):
    def judge(self, calls, least):
        self.assertGreaterEqual(calls.count, least)
        self.assertFalse(calls.raised, f"{len(calls.raised)} of {calls.count}:\n" + "\n".join(calls.raised))

    def test_library_of_another_version(self):
        """Refused at load: its structs may be others. So is a library that is not libpackd."""
        directory = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        for source, words in (('const char *packd_version(void) { return "0.0.9"; }', "is libpackd 0.0.9, and this package was written for"),
                              ("int other;", "cannot be loaded as libpackd")):
            library = os.path.join(directory, "libother.so")
            subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True, timeout=60)
            done = subprocess.run([sys.executable, "-c", "import packd; packd.Job(job='a')"], env={**os.environ, "PACKD_LIBRARY": library},
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertIn("packd.errors.LibraryNotFound", done.stderr)
            self.assertIn(words, done.stderr)

    def test_producer(self):
        calls = Calls()
        with harness.Daemon(feeds=[FEED]) as server:
            address = {"server": server.address, "timeout": 1}
            calls.each("Producer", packd.Producer, {**address, "stream": "s"},
                       ["stream", "feed", "source", "content_id", "vocab_size", "tokenizer_digest", "log_id", "buffer_bytes", "block_bytes", "linger_ms",
                        "allow_shifted_looking_labels", "timeout", "token", "producer", "on_reject", "on_progress", "progress_seconds"])
            calls.each("Producer", packd.Producer, {**address, "stream": "s"}, ["server"], [1, 1.5, b"x", [], {}, object(), "a\0b", "no port", "unix:"])
            with packd.Producer(server.address, stream="ok") as producer:
                put = {"tokens": [1, 2, 3], "timeout": 5}
                calls.each("put", producer.put, put,
                           ["tokens", "labels", "loss_mask", "weight", "key", "group", "version", "tensors", "spans", "merge", "timeout"])
            with packd.Producer(server.address, stream="media", timeout=1) as producer:
                spans = {"offset": 0, "length": 2, "view": None, "patches": 4, "grid": (1, 2, 2), "t_scale": 1.0}
                tensor = {"values": [[1.0], [2.0], [3.0]], "axis": "token", "dtype": None, "unit": "sample", "run_counts": None, "views": (), "align": "target",
                          "pad_value": 0, "loss": False, "pad_mask": None}
                calls.each("put(spans=Span)", lambda **of: producer.put([1, 2, 3], merge=2, spans=[packd.Span(**of)], timeout=5), spans)
                calls.each("put(tensors=Tensor)", lambda **of: producer.put([1, 2, 3], tensors={"t": packd.Tensor(**of)}, timeout=5), tensor)
                calls.each("put(tensors=Tensor)", lambda name: producer.put([1, 2, 3], tensors={name: [1, 2, 3]}, timeout=5), {"name": "t"},
                           wrongs=[w for w in WRONG if w.__hash__])
                producer.close(0)
            with packd.Producer(server.address, stream="many") as producer:
                many = {"tokens": [1, 2, 3], "lengths": [1, 2], "timeout": 5}
                calls.each("put_many", producer.put_many, many,
                           ["tokens", "lengths", "labels", "loss_mask", "weights", "keys", "groups", "versions", "tensors", "timeout"])
                calls.each("put_many", producer.put_many, {"tokens": [1, 2, 3], "offsets": [0, 1, 3]}, ["offsets"])
                calls.each("put_many", producer.put_many, {"tokens": [[1, 2], [3]]}, ["tokens", "labels", "loss_mask"])
                calls.each("remaining", producer.remaining, {"samples": []})
                calls.each("push", producer.push, {"samples": []})
                calls.each("push", lambda sample: producer.push([{"tokens": [1]}] * producer.next_seq + [sample]), {"sample": {"tokens": [1]}})
                with self.assertRaisesRegex(packd.InvalidArgument, r"tensors: the name 'a\\x00b': expected text without NUL"):
                    producer.put([1], tensors={"a\0b": [1]})
                for name in ("flush", "end_stream", "end_feed"):
                    calls.each(name, getattr(producer, name), {"timeout": 1}, wrongs=[w for w in WRONG if w is not None and w is not True])
            calls.each("close", producer.close, {"timeout": 1})
        self.judge(calls, 1000)

    def test_job(self):
        calls = Calls()
        with harness.Daemon(feeds=[FEED]) as server:
            with packd.Producer(server.address, stream="s") as producer:
                for _ in range(100):
                    producer.put([1] * 50)
                producer.end_feed()
            good = {"server": server.address, "job": "train", "reader": True, "timeout": 1}
            calls.each("Job", packd.Job, good,
                       ["job", "feed", "dp_size", "dp_rank", "rows", "accum", "step_packs", "segment_multiple", "world_token", "log_id", "resume_step", "start",
                        "steps", "regroup", "reader", "labels", "arrays", "commit_every", "prefetch", "prefetch_bytes", "timeout", "token", "client",
                        "on_waiting", "on_commit_needed"])
            with packd.Job(**good) as job:
                calls.each("fetch", job.fetch, {"timeout": 1}, wrongs=[w for w in WRONG if w is not None])
                calls.each("commit", job.commit, {"step": 0, "timeout": 1})
        self.judge(calls, 700)

    def test_readers(self):
        calls = Calls(allowed=OSError)
        directory = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        path = os.path.join(directory, "a.jsonl")
        for line in ('{"tokens": [1]}', '{"tokens": 1}', '{"tokens": "abc"}', '{"text": 1}', '{"text": []}', '[1]', "x", "1", '{"tokens": {"a": 1}}', "null"):
            with open(path, "w") as file:
                file.write(line + "\n")
            calls.each("jsonl " + line, readers.jsonl, {"path": path}, ["tokens", "text", "tokenize"])
        calls.each("jsonl", readers.jsonl, {"path": path})
        calls.each("sample", readers.sample, {"record": {"tokens": [1]}, "where": "here"}, ["record", "where", "tokens", "text", "tokenize"])
        for wrong in WRONG:
            calls.one("sample", readers.sample, {"where": "here"}, "record", {"tokens": wrong})
            calls.one("sample", readers.sample, {"where": "here"}, "record", {"text": wrong})
            calls.one("hf", readers.hf, {}, "dataset", [wrong])
            calls.one("content_id", lambda path: readers.content_id(path), {}, "path", wrong)
        for name in ("hf", "webdataset", "parquet", "megatron"):
            reader = getattr(readers, name)
            calls.each(name, reader, {{"hf": "dataset", "megatron": "prefix"}.get(name, "path"): path})
        with open(path, "wb") as file:
            file.write(b"MMIDIDX\0\0" + bytes(100))
        calls.each("utf8", readers.utf8, {"text": "a"})
        self.judge(calls, 500)

    def test_batches(self):
        calls = Calls()
        samples = [[5, 6, 7], [8, 9], [1, 2, 3, 4]]
        calls.each("make_batch", testing.make_batch, {"samples": samples, "width": 8},
                   ["samples", "width", "rows", "placement", "header", "labels", "loss_weight", "seg_align", "pad_segment", "pad_id", "fixed_segments",
                    "max_segments", "unknown"])
        calls.each("make_step", testing.make_step, {"samples": samples, "width": 8, "rows": 1, "dp_size": 2, "accum": 2, "step": 0})
        for wrong in WRONG:
            for key in ("tokens", "labels", "loss_mask", "weight", "key", "stream", "seq", "source", "tensors"):
                calls.one("make_batch", lambda samples: testing.make_batch(samples, width=8), {}, "samples", [{"tokens": [1, 2], key: wrong}])
        batch = testing.make_batch(samples, width=8)
        calls.each("from_arrays", packd.Batch.from_arrays, {"arrays": dict(batch.items())}, ["arrays", "header"])
        for name in batch.keys():
            calls.each("from_arrays", lambda value, name=name: packd.Batch.from_arrays({**dict(batch.items()), name: value}), {"value": 1})
        calls.each("from_rows", packd.Samples.from_rows, {"rows": []})
        calls.each("from_rows", lambda row: packd.Samples.from_rows([row]), {"row": {}})
        calls.each("column", batch.samples.column, {"name": "seq"})
        self.judge(calls, 700)

    def test_adapters(self):
        calls = Calls()
        batch = testing.make_batch([[5, 6, 7], [8, 9], [1, 2, 3, 4]], width=8)
        calls.each("get", adapters.get, {"name": "hf"})
        for name in adapters.names():
            adapter = adapters.get(name)
            calls.each(name, adapter, {"batch": batch}, ["batch", "extras", "convert", "framework", "cp_size", "cp_rank", "unknown"])
        calls.each("isolation", verify.isolation, {"forward": lambda batch: numpy.zeros((*batch["tokens"].shape, 4)), "batch": batch, "tolerance": 0.0,
                                                   "check": True})
        calls.each("loss", verify.loss, {"forward": lambda batch: numpy.zeros(batch["tokens"].shape), "batch": batch, "tolerance": 1e-5, "check": True})
        calls.each("structure", verify.structure, {"batch": batch})
        calls.each("probe", verify.probe, {"attn_fn": lambda q, k, v, cu_seqlens, max_seqlen: q, "batch": batch, "heads": 1, "head_dim": 64, "dtype": "float32",
                                           "framework": "numpy", "check": False})
        self.judge(calls, 300)

    @unittest.skipIf(torch is None, "no torch")
    def test_torch(self):
        calls = Calls()
        batch = testing.make_batch([[5, 6, 7], [8, 9], [1, 2, 3, 4]], width=8)
        with harness.Daemon(feeds=[FEED]) as server:
            with packd.Producer(server.address, stream="s") as producer:
                for _ in range(20):
                    producer.put([1] * 60)
                producer.end_feed()

            def first(**of):
                return next(iter(packd.torch.PackedDataset(**of)))

            calls.each("PackedDataset", first, {"server": server.address, "job": "train", "timeout": 1},
                       ["job", "feed", "rows", "accum", "mesh", "dp_rank", "dp_size", "adapter", "adapter_options", "start", "resume_step", "unknown"])
            data = packd.torch.PackedDataset(server.address, job="other")
            first_state = next(iter(data)).state
            calls.each("load_state_dict", data.load_state_dict, {"state": first_state})
            for name in first_state:
                calls.each("load_state_dict", lambda value, name=name: data.load_state_dict(first_state | {name: value}), {"value": first_state[name]})
                with self.assertRaisesRegex(packd.InvalidArgument, f"without {name}: expected what state_dict"):
                    data.load_state_dict({key: value for key, value in first_state.items() if key != name})
            calls.each("commit", data.commit, {"step": 0, "timeout": 1})
        calls.each("tensors", packd.torch.tensors, {"batch": batch})
        calls.each("TensorBatch.of", packd.torch.TensorBatch.of, {"batch": batch})
        calls.each("data_rank", packd.torch.data_rank, {"mesh": None})
        self.judge(calls, 500)


if __name__ == "__main__":
    unittest.main()
