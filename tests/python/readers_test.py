"""packd.readers: what each kind of file holds becomes samples, and what it should not hold is named with its place."""

import gzip
import io
import json
import os
import struct
import tarfile
import tempfile
import unittest

import numpy

import harness
import packd
from packd import readers

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None
    print("SKIP: readers_test: Parquet: pyarrow is not installed")
try:
    import datasets
except ImportError:
    datasets = None
    print("SKIP: readers_test: Hugging Face: datasets is not installed")


def plain(samples):
    return [{name: value.tolist() if isinstance(value, numpy.ndarray) else value for name, value in sample.items()} for sample in samples]


class ReadersTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, name, data=None):
        path = os.path.join(self.directory, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def test_jsonl(self):
        rows = [{"tokens": [1, 2], "key": "a", "labels": [-100, 2], "other": {}}, {"input_ids": [3], "weight": 0.5}, {"text": "h\u00e9"}]
        text = "\n".join(map(json.dumps, rows[:2])) + "\n\n" + json.dumps(rows[2]) + "\n"
        expected = [{"tokens": [1, 2], "key": "a", "labels": [-100, 2]}, {"tokens": [3], "weight": 0.5}, {"tokens": [104, 0xc3, 0xa9]}]
        self.assertEqual(plain(readers.jsonl(self.path("a.jsonl", text.encode()))), expected)
        self.assertEqual(plain(readers.jsonl(self.path("a.jsonl.gz", gzip.compress(text.encode("utf-8-sig"))))), expected)
        named = list(readers.jsonl(self.path("b.jsonl", b'{"prompt": "ab", "text": "x"}'), text="prompt", tokenize=lambda text: [len(text)]))
        self.assertEqual(named, [{"tokens": [2]}])
        for bad, place in ((b'{"tokens": [1]}\n{"tokens"', ":2: not JSON"), (b"[1]", ":1: list: expected an object"),
                           (b'{"words": 1, "key": "k"}', r":1: the record has \['key', 'words'\]: expected tokens or input_ids or text or content or other strings"),
                           (b'{"text": ""}', ":1: no tokens"), (b'{"text": 5}', ":1: the record has")):
            with self.assertRaisesRegex(packd.InvalidArgument, "bad.jsonl" + place) as caught:
                list(readers.jsonl(self.path("bad.jsonl", bad)))
            self.assertEqual(caught.exception.reason, "BAD_RECORD")

    def test_strings_are_joined(self):
        """As packctl push joins them: tests/unit/reader_record_test.c."""
        path = self.path("c.jsonl", b'{"question": "q", "n": 1, "key": "k", "answer": "a"}')
        self.assertEqual([bytes(sample["tokens"]) for sample in readers.jsonl(path)], [b"q\na"])
        self.assertEqual([bytes(sample["tokens"]) for sample in readers.jsonl(path, text="answer,question")], [b"a\nq"])
        with self.assertRaisesRegex(packd.InvalidArgument, "expected answer,context"):
            list(readers.jsonl(path, text="answer,context"))
        self.assertEqual([bytes(readers.sample(record, "here")["tokens"]) for record in ({"text": 5, "q": "a"}, {"text": "t", "q": "a"})], [b"a", b"t"])

    def test_content_id(self):
        one, two = self.path("one", b"a"), self.path("two", b"b")
        self.assertEqual(readers.content_id(one), readers.content_id(self.path("copy", b"a")))
        self.assertEqual(len({readers.content_id(one), readers.content_id(two), readers.content_id(one, two)}), 3)

    def test_mappings(self):
        """What hf() does with a data set that has with_format, and with a list."""
        class Rows(list):
            def with_format(self, kind):
                assert kind == "numpy"
                return [{"input_ids": numpy.array([4, 5]), "weight": numpy.float32(0.5), "attention_mask": numpy.array([1, 1])}]

        self.assertEqual(plain(readers.hf(Rows())), [{"tokens": [4, 5], "weight": 0.5}])
        self.assertEqual(list(readers.hf([{"ids": [7]}], tokens="ids")), [{"tokens": [7]}])
        with self.assertRaisesRegex(packd.InvalidArgument, "record 1: "):
            list(readers.hf([{"text": "a"}, {"image": 1}]))

    @unittest.skipIf(datasets is None, "datasets is not installed")
    def test_hugging_face(self):
        rows = {"input_ids": [[1, 2], [3]], "key": ["a", "b"]}
        data = datasets.Dataset.from_dict(rows)
        expected = [{"tokens": [1, 2], "key": "a"}, {"tokens": [3], "key": "b"}]
        self.assertEqual(plain(readers.hf(data)), expected)
        self.assertEqual(plain(readers.hf(data.to_iterable_dataset())), expected)

    @unittest.skipIf(pyarrow is None, "pyarrow is not installed")
    def test_parquet(self):
        table = pyarrow.table({"tokens": [[1, 2], [3], [4, 5, 6]], "key": ["a", None, "c"], "version": [1, 2, 3]})
        path = self.path("a.parquet")
        pyarrow.parquet.write_table(table, path)
        self.assertEqual(plain(readers.parquet(path, batch_rows=2)),
                         [{"tokens": [1, 2], "key": "a", "version": 1}, {"tokens": [3], "version": 2}, {"tokens": [4, 5, 6], "key": "c", "version": 3}])

    @unittest.skipIf(pyarrow is not None, "pyarrow is installed")
    def test_parquet_without_pyarrow(self):
        with self.assertRaisesRegex(packd.Unsupported, "pip install pyarrow"):
            next(readers.parquet("x.parquet"))

    def tar(self, *members):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    def npy(self, values):
        buffer = io.BytesIO()
        numpy.save(buffer, values)
        return buffer.getvalue()

    def test_webdataset(self):
        data = self.tar(("shard/0001.npy", self.npy(numpy.array([1, 2, 3], "uint16"))), ("shard/0001.labels.npy", self.npy(numpy.array([-100, 2, 3]))),
                        ("shard/0001.jpg", b"\xff\xd8"), ("shard/0002.txt", b"ab"), ("shard/0003.json", b'{"tokens": [9], "key": "own", "weight": 2}'))
        expected = [{"tokens": [1, 2, 3], "labels": [-100, 2, 3], "key": "shard/0001"}, {"tokens": [97, 98], "key": "shard/0002"},
                    {"tokens": [9], "key": "own", "weight": 2}]
        self.assertEqual(plain(readers.webdataset(self.path("a.tar", data))), expected)
        self.assertEqual(plain(readers.webdataset(io.BytesIO(gzip.compress(data)))), expected)
        with self.assertRaisesRegex(packd.InvalidArgument, "b.tar: x.json"):
            list(readers.webdataset(self.path("b.tar", self.tar(("x.json", b"{")))))
        with self.assertRaisesRegex(packd.InvalidArgument, "x.npy"):
            list(readers.webdataset(self.path("b.tar", self.tar(("x.npy", self.npy(numpy.array([{}], object)))))))

    def megatron(self, sequences, documents, dtype="uint16", code=8, bin_cut=0, **head):
        arrays = [numpy.array(sequence, dtype) for sequence in sequences]
        self.path("m.bin", b"".join(array.tobytes() for array in arrays)[:-bin_cut or None])
        lengths = numpy.array([len(array) for array in arrays], "<i4")
        pointers = numpy.cumsum(lengths.astype("<i8") * numpy.dtype(dtype).itemsize) - lengths * numpy.dtype(dtype).itemsize
        index = struct.pack("<QBQQ", head.get("version", 1), code, head.get("count", len(arrays)), len(documents))
        self.path("m.idx", head.get("magic", b"MMIDIDX\0\0") + index + lengths.tobytes() + pointers.astype("<i8").tobytes()
                  + numpy.array(documents, "<i8").tobytes())
        return os.path.join(self.directory, "m")

    def test_megatron(self):
        sequences = [[1, 2], [3, 4, 5], [], [60000]]
        prefix = self.megatron(sequences, [0, 2, 3, 4])
        self.assertEqual(plain(readers.megatron(prefix)), [{"tokens": [1, 2, 3, 4, 5], "key": "0"}, {"tokens": [60000], "key": "2"}])
        self.assertEqual([sample["tokens"] for sample in plain(readers.megatron(prefix, documents=False))], [[1, 2], [3, 4, 5], [60000]])
        self.assertEqual(plain(readers.megatron(self.megatron(sequences, [0, 2, 3, 4], "int32", 4)))[1]["tokens"], [60000])
        self.assertEqual(list(readers.megatron(self.megatron([], [0]))), [])
        for bad, text in ((dict(magic=b"MMIDIDX\0\1"), "not an index"), (dict(version=2), "not an index"), (dict(code=7), "float32"),
                          (dict(code=77), "type 77"), (dict(count=1 << 60), "do not fit"), (dict(bin_cut=1), "m.bin has 11 bytes")):
            with self.assertRaisesRegex(packd.InvalidArgument, text):
                list(readers.megatron(self.megatron(sequences, [0, 2, 3, 4], **bad)))
        for documents in ([0, 2], [1, 4], [0, 3, 2, 4]):
            with self.assertRaisesRegex(packd.InvalidArgument, "document bounds"):
                list(readers.megatron(self.megatron(sequences, documents)))

    def test_pushed_and_served(self):
        path = self.path("a.jsonl", "".join(json.dumps({"text": "x" * n, "key": f"k{n}"}) + "\n" for n in range(1, 40)).encode())
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 64, "window": 32}]) as server:
            for _ in range(2):  # the second run finds nothing to do
                with packd.Producer(server.address, stream="s", content_id=readers.content_id(path)) as producer:
                    pushed = producer.push(readers.jsonl(path))
            self.assertEqual(pushed, 0)
            server.packctl("end-feed")
            with packd.Job(server.address, job="j") as job:
                found = {sample.key: sample.length for batch in job for sample in batch.samples}
            self.assertEqual(found, {f"k{n}".encode(): n for n in range(1, 40)})


if __name__ == "__main__":
    unittest.main()
