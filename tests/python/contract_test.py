"""The daemon's batches against packd.testing's: the same samples in the same rows must give the same arrays, whatever the feed's rules;
and a model that heeds the boundaries passes packd.verify on what the daemon serves."""

import random
import unittest

import numpy

import harness
import packd
from packd import adapters, testing, verify

RULES = [{}, {"labels": "shifted"}, {"seg_align": 8, "pad_segment": 24}, {"seg_align": 8, "labels": "shifted", "loss_weight": "sample"},
         {"fixed_segments": 40, "max_segments": 12}, {"max_segments": 3, "pad_id": 99}]


class ContractTest(unittest.TestCase):
    def setUp(self):
        self.seed = random.randrange(1 << 30)
        print(f"seed {self.seed}")
        self.rng = numpy.random.default_rng(self.seed)

    def samples(self, count=60):
        """Some with a loss mask, other labels, a weight."""
        for n in range(count):
            tokens = self.rng.integers(1, 90, self.rng.integers(1, 60)).astype("int32")
            sample = {"tokens": tokens}
            if n % 3 == 1:
                sample["loss_mask"] = self.rng.integers(0, 2, len(tokens)).astype("uint8")
            if n % 4 == 2:
                sample["labels"] = self.rng.integers(1, 90, len(tokens)).astype("int32")
                sample["labels"][self.rng.random(len(tokens)) < 0.2] = -100
            if n % 5 == 3:
                sample["weight"] = float(numpy.float32(self.rng.random() * 2))
            yield sample

    def rebuilt(self, batch, pushed, rules):
        """The batch again, from its sample table and what was pushed."""
        table, rows = list(batch.samples), batch.rows
        placement = [[] for _ in range(rows)]
        for segment, index in enumerate(batch["sample_index"].tolist()):
            if index >= 0:
                placement[batch["cu_seqlens"][segment] // batch.width].append(index)
        taken = [pushed[sample.seq] | {"stream": sample.stream, "seq": sample.seq} for sample in table]
        return testing.make_batch(taken, width=batch.width, rows=rows, placement=placement, **rules)

    def test_same_arrays_and_totals(self):
        feeds = [{"name": f"f{n}", "seq_len": 64, "total_align": 8 if "seg_align" in rules else 1, **rules} for n, rules in enumerate(RULES)]
        with harness.Daemon(feeds=feeds) as server:
            for n, rules in enumerate(RULES):
                with self.subTest(**rules):
                    pushed = list(self.samples())
                    with packd.Producer(server.address, feed=f"f{n}", stream=f"s{n}") as producer:
                        producer.push(pushed)
                        producer.end_feed()
                    with packd.Job(server.address, feed=f"f{n}", job="j", rows=3) as job:
                        batches = list(job)
                    self.assertEqual(sum(len(batch.samples) for batch in batches), len(pushed))
                    for batch in batches:
                        self.compare(batch, self.rebuilt(batch, pushed, rules))
                    self.isolated(batches[0])

    def compare(self, batch, other):
        self.assertEqual(verify.structure(batch), [])
        self.assertEqual(sorted(batch), sorted(other))
        for name in other:
            numpy.testing.assert_array_equal(batch[name], other[name], name)
            self.assertEqual(batch[name].dtype, other[name].dtype, name)
        for name in ("max_seqlen", "max_seqlen_real", "max_seqlen_padded", "n_segments", "n_real_segments", "fixed_segments", "pad_id",
                     "label_convention", "loss_weight_policy"):
            self.assertEqual(batch.header[name], other.header[name], name)
        for name in ("real_tokens", "tail_padding", "gap", "row_padding", "samples", "segments", "attention_cost", "loss_tokens"):
            self.assertEqual(batch.header["batch_totals"][name], other.header["batch_totals"][name], name)
        self.assertAlmostEqual(batch.header["batch_totals"]["loss_weight"], other.header["batch_totals"]["loss_weight"], places=5)

    def isolated(self, batch):
        table = numpy.random.default_rng(0).normal(size=(100, 4))

        def forward(one):
            """Means of embedded tokens over each sample's prefix."""
            x = table[adapters.get("numpy")(one)["tokens"]].reshape(-1, 4)
            out = numpy.zeros_like(x)
            for begin, end in zip(one["cu_seqlens"][:-1], one["cu_seqlens"][1:]):
                out[begin:end] = numpy.cumsum(x[begin:end], 0)
            return out
        self.assertTrue(verify.isolation(forward, batch))
        self.assertTrue(verify.loss(lambda one: numpy.abs(forward(one)).sum(1), batch))
        attend = lambda q, k, v, cu, n: numpy.concatenate(  # noqa: E731
            [numpy.cumsum(v[a:b], 0) / numpy.arange(1, b - a + 1)[:, None, None] for a, b in zip(cu[:-1], cu[1:])])
        self.assertTrue(verify.probe(attend, batch, framework="numpy", dtype="float64"))


if __name__ == "__main__":
    unittest.main()
