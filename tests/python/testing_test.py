"""packd.testing's batches against arrays written out by hand, and packd.verify.structure on batches with one rule broken."""

import unittest

import numpy

import packd
from packd import testing, verify


class MakeBatchTest(unittest.TestCase):
    def expect(self, batch, **wanted):
        for name, values in wanted.items():
            self.assertEqual(batch[name].tolist(), values, name)
            self.assertEqual(batch[name].dtype, numpy.float32 if name == "loss_weight" else numpy.int32, name)
        self.assertEqual(verify.structure(batch), [])

    def test_by_hand(self):
        batch = testing.make_batch([[5, 6, 7], [8, 9], [1, 2, 3, 4, 5]], width=8, rows=3, seg_align=2, pad_segment=3, pad_id=60)
        no = -100
        self.expect(batch, tokens=[[5, 6, 7, 60, 8, 9, 60, 60], [1, 2, 3, 4, 5, 60, 60, 60], [60] * 8],
                    positions=[[0, 1, 2, 3, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5, 0, 1], [0, 1, 0, 1, 0, 1, 0, 1]],
                    segment_ids=[[1, 1, 1, 0, 2, 2, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0], [0] * 8],
                    labels=[[no, 6, 7, no, no, 9, no, no], [no, 2, 3, 4, 5, no, no, no], [no] * 8],
                    loss_weight=[[0, 1, 1, 0, 0, 1, 0, 0], [0, 1, 1, 1, 1, 0, 0, 0], [0] * 8],
                    cu_seqlens=[0, 4, 6, 8, 14, 16, 18, 20, 22, 24], seq_lens=[3, 2, 0, 5, 0, 0, 0, 0, 0],
                    sample_index=[0, 1, -1, 2, -1, -1, -1, -1, -1], cu_seqlens_real=[0, 3, 5, 10, 18], cu_seqlens_padded=[0, 4, 8, 16, 24])
        totals = batch.header["batch_totals"]
        self.assertEqual([totals[name] for name in ("real_tokens", "gap", "tail_padding", "row_padding", "loss_tokens", "loss_weight")],
                         [10, 2, 4, 8, 7, 7.0])
        self.assertEqual((batch.max_seqlen, batch.header["max_seqlen_padded"]), (6, 8))
        self.assertEqual([(s.stream, s.seq, s.length) for s in batch.samples], [("test", 0, 3), ("test", 1, 2), ("test", 2, 5)])

    def test_shifted_masked_and_weighed(self):
        sample = {"tokens": [5, 6, 7, 8], "labels": [5, 6, 17, 8], "loss_mask": [1, 0, 1, 1], "weight": 3.0}
        batch = testing.make_batch([sample, [9]], width=8, labels="shifted", loss_weight="sample", fixed_segments=4)
        self.expect(batch, labels=[[-100, 17, 8, -100, -100, -100, -100, -100]], loss_weight=[[0, 1.5, 1.5, 0, 0, 0, 0, 0]],
                    cu_seqlens=[0, 4, 5, 8, 8], seq_lens=[4, 1, 0, 0], cu_seqlens_real=[0, 4, 5, 5, 5], cu_seqlens_padded=[0, 4, 8, 8, 8])

    def test_tensors(self):
        batch = testing.make_batch([{"tokens": [1, 2], "tensors": {"a": [[1], [2]], "s": [7, 8, 9]}},
                                    {"tokens": [3, 4], "tensors": {"a": [[3], [4]], "s": [1, 2, 3]}}], width=5)
        self.assertEqual(batch["a"].tolist(), [[[1], [2], [3], [4], [0]]])
        self.assertEqual(batch["s"].tolist(), [[7, 8, 9], [1, 2, 3]])

    def test_steps(self):
        step = testing.make_step([[1] * 5] * 7, width=8, rows=2, dp_size=2, accum=2, step=3)
        self.assertEqual(sorted(step), [(0, 0), (0, 1), (1, 0), (1, 1)])
        self.assertEqual([len(step[at].samples) for at in sorted(step)], [2, 2, 2, 1])
        self.assertEqual(step[1, 1].header["packs"], [30, -1])
        for batch in step.values():
            self.assertEqual(batch.loss_denominator, 28.0)
            self.assertEqual(batch.header["step_totals"]["row_padding"], 8)

    def test_bad_use(self):
        for said, make in {
                "does not fit a row of 4": lambda: testing.make_batch([[1] * 5], width=4),
                "need 2 rows of 4": lambda: testing.make_batch([[1] * 3] * 2, width=4, rows=1),
                "take 6 positions of 4": lambda: testing.make_batch([[1] * 3] * 2, width=4, placement=[[0, 1]]),
                "name each of 2 samples once": lambda: testing.make_batch([[1]] * 2, width=4, placement=[[0], [0]]),
                "no tokens": lambda: testing.make_batch([[]], width=4),
                "a token below 0": lambda: testing.make_batch([[-1]], width=4),
                "2 labels for 1 tokens": lambda: testing.make_batch([{"tokens": [1], "labels": [1, 2]}], width=4),
                "no multiple of seg_align": lambda: testing.make_batch([[1]], width=4, seg_align=3),
                "expected unshifted or shifted": lambda: testing.make_batch([[1]], width=4, labels="moved"),
                "a step has 1": lambda: testing.make_step([[1] * 3] * 2, width=4),
                "fixed_segments is 1": lambda: testing.make_batch([[1]] * 2, width=4, fixed_segments=1)}.items():
            with self.assertRaisesRegex(packd.errors.InvalidArgument, said):
                make()


class StructureTest(unittest.TestCase):
    def test_each_rule(self):
        good = testing.make_batch([[5, 6, 7], [8, 9], [1, 2, 3, 4]], width=8, seg_align=2)
        breaks = {
            "begins with 0 and ends with 16": ("cu_seqlens", -1, 15), "increases strictly": ("cu_seqlens", 1, 0),
            "every row start": ("cu_seqlens", 3, 9), "seq_lens fit": ("seq_lens", 0, 5), "positions restart": ("positions", (0, 4), 4),
            "segment_ids count": ("segment_ids", (0, 4), 1), "padding holds pad_id": ("tokens", (0, 3), 1),
            "padding has no loss": ("labels", (1, 6), 1), "where there is no label": ("loss_weight", (0, 0), 1),
            "the first label": ("labels", (0, 4), 8)}
        for rule, (name, at, value) in breaks.items():
            with self.subTest(rule):
                arrays = {key: array.copy() for key, array in good.items()}
                arrays[name][at] = value
                found = verify.structure(packd.Batch.from_arrays(arrays, good.header))
                self.assertEqual(len([line for line in found if rule in line]), 1, found)
        longest = packd.Batch.from_arrays(dict(good.items()), good.header | {"max_seqlen": 3})
        self.assertIn("max_seqlen is the longest slot, 4", verify.structure(longest)[0])
        self.assertIn("at row 0 column 4", verify.structure(packd.Batch.from_arrays(
            dict(good.items()) | {"positions": numpy.tile(numpy.arange(8, dtype="int32"), (2, 1))}, good.header))[0])


if __name__ == "__main__":
    unittest.main()
