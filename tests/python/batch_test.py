"""packd.Batch from plain arrays, and packd's errors: no server, no libpackd, no torch."""

import pickle
import sys
import unittest

import numpy

import packd
from packd import errors

ARRAYS = {
    "tokens": numpy.array([[5, 6, 7, 8, 9, 0, 0, 0]], "int32"),
    "positions": numpy.array([[0, 1, 2, 0, 1, 0, 1, 2]], "int32"),
    "segment_ids": numpy.array([[1, 1, 1, 2, 2, 0, 0, 0]], "int32"),
    "labels": numpy.array([[-100, 6, 7, -100, 9, -100, -100, -100]], "int32"),
    "loss_weight": numpy.array([[0, 1, 1, 0, 0.5, 0, 0, 0]], "float32"),
    "cu_seqlens": numpy.array([0, 3, 5, 8], "int32"),
    "seq_lens": numpy.array([3, 2, 0], "int32"),
    "sample_index": numpy.array([0, 1, -1], "int32"),
    "cu_seqlens_real": numpy.array([0, 3, 5], "int32"),
    "cu_seqlens_padded": numpy.array([0, 3, 8], "int32"),
}
SAMPLES = [{"stream": "s", "seq": 4, "key": b"k", "length": 3}, {"stream": "s", "seq": 5, "part": 1, "length": 2}]


class BatchTest(unittest.TestCase):
    def make(self, **header):
        return packd.Batch.from_arrays(ARRAYS, {"step": 3, "samples": SAMPLES, **header})

    def test_header_follows_from_the_arrays(self):
        batch = self.make()
        self.assertEqual((batch.step, batch.micro, batch.rows, batch.width), (3, 0, 1, 8))
        self.assertIs(type(batch.max_seqlen), int)
        self.assertEqual((batch.max_seqlen, batch.header["max_seqlen_real"], batch.header["max_seqlen_padded"]), (3, 3, 5))
        self.assertEqual((batch.header["n_segments"], batch.header["n_real_segments"]), (3, 2))
        totals = batch.header["batch_totals"]
        self.assertEqual((totals["real_tokens"], totals["tail_padding"], totals["attention_cost"]), (5, 3, 13))
        self.assertEqual(totals["loss"], {"tokens": {"count": 3, "weight": 2.5}})
        self.assertEqual(batch.loss_denominator, 2.5)
        self.assertEqual(self.make(max_seqlen=64, label_convention="shifted").header["max_seqlen"], 64)

    def test_arrays_are_not_copied(self):
        batch = self.make()
        self.assertTrue(numpy.shares_memory(batch["tokens"], ARRAYS["tokens"]))
        self.assertEqual(list(batch), list(ARRAYS))
        self.assertEqual(set(dict(batch)), set(ARRAYS))
        self.assertIn("labels", batch)
        self.assertIsNone(batch.get("pixels"))
        self.assertFalse(numpy.shares_memory(batch.copy()["tokens"], ARRAYS["tokens"]))
        with self.assertRaisesRegex(KeyError, "no array 'pixels'; it has tokens, "):
            batch["pixels"]

    def test_samples(self):
        samples = self.make().samples
        self.assertEqual(len(samples), 2)
        self.assertEqual(samples[1], packd.Sample("s", 5, 1, b"", "default", 0, b"", 0, 0, 2, 0, 0, 0.0, 0))
        self.assertEqual(samples.seq.tolist(), [4, 5])
        self.assertEqual([row.key for row in samples], [b"k", b""])
        self.assertEqual(packd.Samples(2, {"seq": lambda: numpy.array([9, 8], "uint64")})[0].seq, 9)
        with self.assertRaises(IndexError):
            samples[2]
        with self.assertRaisesRegex(AttributeError, "no column 'token'"):
            samples.token
        with self.assertRaisesRegex(packd.InvalidArgument, "unknown columns .'lenght'."):
            self.make(samples=[{"lenght": 1}])

    def test_pickle(self):
        batch = pickle.loads(pickle.dumps(self.make()))
        self.assertEqual(batch.samples[0].key, b"k")
        for name in ARRAYS:
            numpy.testing.assert_array_equal(batch[name], ARRAYS[name])

    def test_wrong_arrays(self):
        with self.assertRaisesRegex(packd.InvalidArgument, r"tokens has shape \[8\]"):
            packd.Batch.from_arrays({"tokens": ARRAYS["tokens"][0]})
        with self.assertRaisesRegex(packd.InvalidArgument, "x complex128"):
            packd.Batch.from_arrays({"x": numpy.zeros(3, complex)})


class ErrorsTest(unittest.TestCase):
    def test_every_fact_is_told_once(self):
        error = packd.Timeout("packd at h:1: job train: nothing", reason="NOT_READY", grpc_code=14, server="h:1", job="train", step=7)
        self.assertEqual(str(error), "packd at h:1: job train: nothing [step 7, gRPC UNAVAILABLE, reason NOT_READY]")
        self.assertIsInstance(error, TimeoutError)
        self.assertFalse(error.final)

    def test_classes(self):
        self.assertIs(errors.class_for(-10), packd.Fenced)
        self.assertIs(errors.class_for(-99), packd.Error)
        for kind in (packd.Timeout, packd.InvalidArgument, packd.LibraryNotFound, packd.IOFailed):
            self.assertEqual(str(kind("text", reason="R")), "text [reason R]")

    def test_pickle(self):
        error = pickle.loads(pickle.dumps(packd.Fenced("gone", reason="FENCED", job="j", step=3)))
        self.assertEqual((type(error), error.reason, error.job, error.step, str(error)),
                         (packd.Fenced, "FENCED", "j", 3, "gone [job j, step 3, reason FENCED]"))


class ImportTest(unittest.TestCase):
    def test_import_needs_numpy_alone(self):
        for name in ("torch", "jax", "cffi", "_cffi_backend"):
            self.assertNotIn(name, sys.modules)


if __name__ == "__main__":
    unittest.main()
