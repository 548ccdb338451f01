"""packd.verify on small models: planted leaks are found and named, correct models pass, in torch and in NumPy."""

import unittest

import numpy
import torch

import models
import packd
from packd import adapters, testing, verify
from packd.adapters import flash_attn

torch.set_num_threads(1)
ROWS = [[0, 1, 2], [3, 4], [5, 6, 7]]
LENGTHS = [9, 5, 7, 14, 6, 3, 8, 4]


def make(**rules):
    random = numpy.random.default_rng(3)
    lists = [random.integers(1, models.VOCABULARY, n).tolist() for n in LENGTHS]
    return testing.make_batch(lists, **{"width": 28, "placement": ROWS, **rules})


class IsolationTest(unittest.TestCase):
    def setUp(self):
        self.batch = make()
        self.model = models.Transformer()

    def attend(self, batch, mask=None, positions=None):
        """The transformer over rows; mask and positions may be wrong on purpose."""
        packed = adapters.get("sdpa")(batch)
        allowed = packed["attn_mask"] if mask is None else mask
        places = packed["positions"] if positions is None else positions
        with torch.no_grad():
            return self.model(packed["tokens"], places, models.dense(allowed))

    def find(self, forward, **options):
        with self.assertRaises(verify.NotIsolated) as caught:
            verify.isolation(forward, self.batch, **options)
        return caught.exception.report, str(caught.exception)

    def test_correct_models_pass(self):
        for batch in (self.batch, make(seg_align=4), make(fixed_segments=20)):
            report = verify.isolation(self.attend, batch)
            self.assertTrue(report, report)
            self.assertEqual(report.samples, 8)
            self.assertLess(report.runs, 32)
        recurrent = models.Recurrent()
        for name in ("torch", "float64"):
            if name == "float64":
                recurrent.double()
            with torch.no_grad():
                self.assertTrue(verify.isolation(lambda b: recurrent(*self.state(b)), self.batch))

    @staticmethod
    def state(batch):
        packed = adapters.get("mamba")(batch)
        return packed["input_ids"], packed["seq_idx"]

    def test_flat_outputs_and_objects_with_logits(self):
        class Output:
            pass

        def forward(batch):
            packed = adapters.get("hf")(batch)
            attend = models.flattened(flash_attn.bind(models.varlen, batch))
            output = Output()
            output.logits = self.model(packed["input_ids"], packed["position_ids"], attend)
            return output
        self.assertTrue(verify.isolation(forward, self.batch, check=False), "[1, T, vocabulary]")
        self.assertTrue(verify.isolation(lambda b: forward(b).logits[0], self.batch), "[T, vocabulary]")

    def test_no_mask(self):
        report, text = self.find(lambda b: self.attend(b, mask=torch.ones(28, 28, dtype=torch.bool)))
        pairs = {(leak.source.segment, leak.target.segment) for leak in report.leaks}
        place = {p.segment: p.row for p in report.leaking}
        self.assertEqual(len(report.leaking), 8)
        self.assertTrue(all(place[a] == place[b] for a, b in pairs))
        self.assertEqual(len(pairs), 6 + 2 + 6, "every ordered pair of a row")
        self.assertIn("no mask at all", text)
        self.assertTrue(report.padding, "padding reaches them too")

    def test_causal_over_the_row(self):
        report, text = self.find(lambda b: self.attend(b, mask=torch.ones(28, 28, dtype=torch.bool).tril()))
        self.assertEqual({(leak.source.row, leak.source.number, leak.target.number) for leak in report.leaks},
                         {(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 1, 2), (2, 1, 2), (2, 1, 3), (2, 2, 3)})
        self.assertIn("causal over the whole row", text)
        self.assertIn("row 0 segment 1 (test:0) reaches row 0 segment 2 (test:1)", text)
        self.assertEqual({leak.change for leak in report.leaks}, {"last token"})

    def test_positions_not_reset(self):
        report, text = self.find(lambda b: self.attend(b, positions=torch.arange(28).expand(3, 28)))
        self.assertFalse(report.leaks)
        self.assertEqual({place.number for place, _ in report.positions}, {2, 3})
        self.assertEqual(len(report.positions), 5)
        self.assertIn("positions do not restart", text)

    def test_boundaries_of_row_0_for_all_rows(self):
        report, text = self.find(lambda b: self.attend(b, mask=adapters.get("sdpa")(b)["attn_mask"][:1]))
        self.assertTrue(report.leaking)
        self.assertTrue(all(place.row > 0 for place in report.leaking + report.cut))
        self.assertIn("row 0", text)
        self.assertIn("the boundaries of row 0 may be used for all rows", text)

    def test_a_boundary_inside_a_sample(self):
        def forward(batch):
            mask = adapters.get("sdpa")(batch)["attn_mask"].clone()
            mask[1, :, 7:14, :7] = False
            return self.attend(batch, mask=mask)
        report, text = self.find(forward)
        self.assertEqual([(place.row, place.number) for place in report.cut], [(1, 1)])
        self.assertFalse(report.positions)
        self.assertIn("a boundary lies inside samples", text)

    def test_recurrent_state_carried_over(self):
        recurrent = models.Recurrent()
        with torch.no_grad():
            report, text = self.find(lambda b: recurrent(*self.state(b), carry=True))
        self.assertEqual(len(report.leaking), 5)
        self.assertIn("carries its state over", text)

    def test_a_leak_across_rows(self):
        recurrent = models.Recurrent()

        def forward(batch):
            packed = adapters.get("hf")(batch)
            index = packed["seq_idx"].clone()
            index[0, 14:37] = 99  # one number from the last sample of row 0 into the first of row 1
            return recurrent(packed["input_ids"], index)
        with torch.no_grad():
            report, text = self.find(forward)
        self.assertIn("row starts are boundaries too", text)
        self.assertTrue(any(leak.source.row != leak.target.row for leak in report.leaks))

    def test_what_is_no_leak_but_no_check_either(self):
        report, text = self.find(lambda b: torch.zeros(3, 28, 5))
        self.assertEqual(len(report.silent), 8)
        self.assertIn("does not depend on the sample's tokens", text)
        dropped = torch.nn.Dropout(0.5)
        report, text = self.find(lambda b: dropped(self.attend(b)))
        self.assertIn("model.eval()", text)
        report, text = self.find(lambda b: self.attend(b) * float("nan"))
        self.assertIn("NaN", text)
        with self.assertRaisesRegex(packd.Error, "one entry for every position"):
            verify.isolation(lambda b: self.attend(b)[:, :-1], self.batch)
        with self.assertRaisesRegex(packd.Error, "needs two"):
            verify.isolation(self.attend, testing.make_batch([[1, 2, 3]], width=28))

    def test_tolerance_and_frozen_tokens(self):
        noise = torch.randn(3, 28, models.VOCABULARY, generator=torch.Generator().manual_seed(0)) * 1e-6
        calls = iter(range(10**6))
        noisy = lambda b: self.attend(b) + noise * (next(calls) % 3)  # noqa: E731
        self.assertFalse(verify.isolation(noisy, self.batch, check=False))
        self.assertTrue(verify.isolation(noisy, self.batch, tolerance=1e-4))
        seen = []
        verify.isolation(lambda b: seen.append(b) or self.attend(b), self.batch, frozen=range(30), vocab_size=61)
        real, before = self.batch["segment_ids"] > 0, self.batch["tokens"]
        changed = [b["tokens"] for b in seen if numpy.array_equal(b["segment_ids"] > 0, real)]  # the others are samples alone
        self.assertGreater(len(changed), 12)
        for tokens in changed:
            self.assertTrue((tokens == before)[real & (before < 30)].all(), "frozen tokens stay")
            self.assertTrue((tokens[real & (tokens != before)] >= 30).all(), "and none becomes one")

    def test_numpy_models(self):
        model = models.NumpyAttention()

        def forward(batch, causal=True, positions=None):
            packed = adapters.get("numpy")(batch)
            ids = adapters.flex.rows(batch)
            allowed = (ids[:, :, None] == ids[:, None, :] if causal else True) & numpy.tri(28, dtype=bool)
            return model(packed["tokens"], packed["positions"] if positions is None else positions, allowed)
        self.assertTrue(verify.isolation(forward, self.batch))
        self.find(lambda b: forward(b, causal=False))
        report, _ = self.find(lambda b: forward(b, positions=numpy.tile(numpy.arange(28), (3, 1))))
        self.assertEqual(len(report.positions), 5)
        state = lambda b, carry: models.numpy_recurrent(b["tokens"], b["segment_ids"], carry)  # noqa: E731
        self.assertTrue(verify.isolation(lambda b: state(b, False), self.batch))
        self.find(lambda b: state(b, True))


class LossTest(unittest.TestCase):
    def losses(self, batch, mask=None):
        packed = adapters.get("sdpa")(batch)
        logits = self.model(packed["tokens"], packed["positions"], models.dense(packed["attn_mask"] if mask is None else mask))
        return models.token_losses(logits, packed["labels"], batch.label_convention == "shifted")

    def setUp(self):
        self.model = models.Transformer()

    def test_packed_is_the_sum_of_the_samples(self):
        for rules in ({}, {"labels": "shifted"}, {"loss_weight": "sample"}, {"seg_align": 4, "labels": "shifted", "loss_weight": "sample"}):
            batch = make(**rules)
            report = verify.loss(self.losses, batch)
            self.assertEqual(len(report.samples), 8)
            self.assertEqual(report.targets, sum(n - 1 for n in LENGTHS))
            weigh = lambda b: (self.losses(b) * torch.from_numpy(b["loss_weight"].reshape(-1))).sum()  # noqa: E731
            mean = verify.loss(lambda b: weigh(b) / b.loss_denominator, batch)
            self.assertAlmostEqual(mean.packed * batch.loss_denominator, report.packed, places=5)

    def test_a_loss_that_depends_on_the_pack(self):
        causal = torch.ones(28, 28, dtype=torch.bool).tril()
        with self.assertRaises(verify.LossDiffers) as caught:
            verify.loss(lambda b: self.losses(b, causal), make())
        self.assertEqual(len(caught.exception.report.wrong), 5)
        with self.assertRaises(verify.LossDiffers):  # the mean over this batch: each sample alone has another denominator
            verify.loss(lambda b: self.losses(b).sum() / float((b["loss_weight"] != 0).sum()), make())

    def test_losses_that_are_not_finite(self):
        """They would compare as anything; where nothing counts they may be what they like."""
        batch = make()
        for bad in (numpy.nan, numpy.inf, -numpy.inf):
            for forward, where in ((lambda b: numpy.full(b["tokens"].shape, bad), "row 0 position 1"), (lambda b: bad, "the batch")):
                for check in (verify.loss, verify.shift):
                    with self.subTest(bad=bad, where=where, check=check.__name__):
                        with self.assertRaisesRegex(packd.InvalidArgument, f"the loss {bad} for .*expected finite") as caught:
                            check(forward, batch)
                        self.assertEqual(caught.exception.reason, "LOSS_NOT_FINITE")
            self.assertTrue(verify.loss(lambda b: numpy.where(b["loss_weight"] != 0, 1.0, bad), batch))

    def test_what_is_no_loss(self):
        for wrong, text in ((None, "returned NoneType"), ("x", "returned str"), ({}, "returned dict"), (numpy.zeros((3, 3)), "shape")):
            for check in (verify.loss, verify.shift):
                with self.subTest(wrong=str(wrong), check=check.__name__), self.assertRaisesRegex(packd.InvalidArgument, text):
                    check(lambda b: wrong, make())

    def test_a_count_that_the_header_does_not_have(self):
        batch = make()
        batch["labels"][0, 3] = -100
        batch["loss_weight"][0, 3] = 0
        report = verify.loss(self.losses, batch, check=False)
        self.assertFalse(report)
        self.assertIn("(header: 48)", str(report))


class ShiftTest(unittest.TestCase):
    setUp, losses = LossTest.setUp, LossTest.losses

    def test_right_models_pass(self):
        for rules in ({}, {"labels": "shifted"}, {"loss_weight": "sample"}, {"seg_align": 4}):
            report = verify.shift(self.losses, make(**rules))
            self.assertTrue(report, report)
            self.assertEqual((len(report.checked), report.blind), (4, []))
            weigh = lambda b: (self.losses(b) * torch.from_numpy(b["loss_weight"].reshape(-1))).sum() / b.loss_denominator  # noqa: E731
            self.assertTrue(verify.shift(weigh, make(**rules), vocab_size=models.VOCABULARY, frozen=[1, 2]))

    def wrong(self, batch, shifted):
        """The loss of a model that takes the labels for what they are not."""
        packed = adapters.get("sdpa")(batch)
        logits = self.model(packed["tokens"], packed["positions"], models.dense(packed["attn_mask"]))
        return models.token_losses(logits, packed["labels"], shifted)

    def test_a_copy_task(self):
        batch, forward = make(), lambda b: self.wrong(b, shifted=True)
        self.assertTrue(verify.loss(forward, batch), "the sum over samples cannot show it")
        with self.assertRaises(verify.NotShifted) as caught:
            verify.shift(forward, batch)
        self.assertEqual(len(caught.exception.report.copied), 4)
        for word in ("learns to copy its input", "labels: shifted", "shift in the model", "segment"):
            self.assertIn(word, str(caught.exception))

    def test_a_model_that_sees_what_follows(self):
        with self.assertRaisesRegex(verify.NotShifted, "of a model that is causal"):
            whole = torch.ones(28, 28, dtype=torch.bool)
            verify.shift(lambda b: self.losses(b, whole), make(labels="shifted"))

    def test_a_copier_whose_other_losses_are_infinite(self):
        """What it copies costs next to nothing, anything else is infinite or NaN."""
        def copier(batch, other):
            return numpy.where(batch["labels"] == batch["tokens"], 0.01 * self.losses(batch).detach().numpy().reshape(batch["tokens"].shape), other)

        for other in (numpy.inf, numpy.nan):
            with self.assertRaisesRegex(packd.InvalidArgument, "expected finite losses"):
                verify.shift(lambda b: copier(b, other), make())

    def test_arguments(self):
        for wrong, text in ((dict(seed=-1), "seed -1"), (dict(seed="x"), "seed 'x'"), (dict(vocab_size=-3), "vocab_size -3"), (dict(frozen=["a"]), "frozen")):
            with self.subTest(**wrong), self.assertRaisesRegex(packd.InvalidArgument, text):
                verify.shift(self.losses, make(), **wrong)

    def test_a_loss_that_is_blind(self):
        report = verify.shift(lambda b: torch.ones(3, 28), make(), check=False)
        self.assertFalse(report)
        self.assertIn("shifted twice", str(report))
        one = testing.make_batch([[5], [7]], width=28)
        with self.assertRaisesRegex(packd.Error, "nothing to check"):
            verify.shift(self.losses, one)


class ProbeTest(unittest.TestCase):
    def setUp(self):
        random = numpy.random.default_rng(0)
        lists = [random.integers(1, 61, n).tolist() for n in (70, 40, 3, 100, 17, 1)]
        self.batch = testing.make_batch(lists, width=128, rows=3, seg_align=1, pad_segment=20)

    def found(self, attend, batch=None, **options):
        report = verify.probe(attend, batch or self.batch, check=False, **options)
        return {name: at.tolist() for name, at in report.violations.items() if len(at)}, report

    def test_clean(self):
        for dtype in ("float32", "float64", "bfloat16"):
            with self.subTest(dtype):
                report = verify.probe(models.varlen, self.batch, dtype=dtype, heads=2, head_dim=16)
                self.assertIn("exact", str(report))
        bidirectional = lambda q, k, v, cu, n: models.varlen(q, k, v, cu, cu, n, n)  # noqa: E731
        verify.probe(bidirectional, self.batch, causal=False, dtype="bfloat16")
        self.assertGreater(verify.probe(models.varlen, self.batch, dtype="bfloat16", head_dim=12).runs, 1)

    def test_a_function_that_is_wrong(self):
        def row_0(q, k, v, cu, n):
            first = cu[cu <= 128]
            cu = torch.cat([first[:-1] + 128 * row for row in range(3)] + [torch.tensor([384])]).int()
            return models.varlen(q, k, v, cu, cu, n, n, causal=True)
        whole_row = torch.tensor([0, 128, 256, 384], dtype=torch.int32)
        faults = {
            "causal over the row": lambda q, k, v, cu, n: models.varlen(q, k, v, whole_row, whole_row, 128, 128, causal=True),
            "not causal": lambda q, k, v, cu, n: models.varlen(q, k, v, cu, cu, n, n),
            "row 0 for all": row_0,
            "max_seqlen too small": lambda q, k, v, cu, n: models.varlen(q, k, v, cu, cu, n - 1, n - 1, causal=True),
            "ends before T": lambda q, k, v, cu, n: models.varlen(q, k, v, cu[:-1], cu[:-1], n, n, causal=True),
        }
        for name, attend in faults.items():
            for dtype in ("float32", "bfloat16"):
                with self.subTest(name, dtype=dtype):
                    self.assertTrue(self.found(attend, dtype=dtype)[0], name)
        foreign, report = self.found(faults["causal over the row"])
        cu = self.batch["cu_seqlens"]
        leaking = [t for t in range(384) if t % 128 and cu[numpy.searchsorted(cu, t, side="right") - 1] % 128]
        self.assertEqual(foreign["foreign"], leaking)
        self.assertIn("see keys of another segment", str(report))
        self.assertEqual(self.found(faults["max_seqlen too small"])[0]["count"], [227], "the last row of the longest segment")

    def test_one_missing_key_shows_in_bfloat16(self):
        def lossy(q, k, v, cu, n):
            out = models.varlen(q, k, v, cu, cu, n, n, causal=True)
            begin, end = 128, 228
            keys = torch.cat([v[begin:begin + 50], v[begin + 51:end]]).float()  # the last query misses key 50 of 100
            out[end - 1] = keys.mean(0).to(out.dtype)
            return out
        self.assertEqual(self.found(lossy, dtype="bfloat16")[0], {"keys": [227]})

    def test_a_batch_that_is_wrong(self):
        def broken(name, change):
            arrays = {key: array.copy() for key, array in self.batch.items()}
            change(arrays[name])
            return packd.Batch.from_arrays(arrays, self.batch.header)

        def off_by_one(cu):
            cu[1] += 1

        def not_reset(positions):
            positions[0, 70:110] = numpy.arange(70, 110)

        def swapped(positions):
            positions[0, [5, 9]] = positions[0, [9, 5]]
        attend = lambda q, k, v, cu, n: models.varlen(q, k, v, cu, cu, n, n, causal=True)  # noqa: E731
        found, report = self.found(attend, broken("cu_seqlens", off_by_one))
        self.assertEqual(found["foreign"], [70])
        self.assertEqual(found["count"], list(range(70, 110)))
        self.assertTrue(report.structure)
        found, _ = self.found(attend, broken("positions", not_reset))
        self.assertEqual(found["count"], list(range(70, 110)), "exactly the rows that were not reset")
        self.assertTrue(self.found(attend, broken("positions", swapped))[0]["count"])

    def test_through_numpy(self):
        def attend(q, k, v, cu, longest):
            out = numpy.zeros_like(v)
            for begin, end in zip(cu[:-1], cu[1:]):
                for t in range(begin, end):
                    out[t] = v[begin:t + 1].mean(0)
            return out
        self.assertTrue(verify.probe(attend, self.batch, framework="numpy"))
        with self.assertRaises(verify.ProbeFailed):
            verify.probe(lambda q, k, v, cu, n: attend(q, k, v, cu[[0, -1]], n), self.batch, framework="numpy")

    def test_bad_use(self):
        with self.assertRaisesRegex(packd.Error, "use head_dim 16"):
            verify.probe(models.varlen, self.batch, head_dim=8)
        with self.assertRaisesRegex(packd.Error, "returned shape"):
            verify.probe(lambda q, k, v, cu, n: v[:-1], self.batch)
        with self.assertRaisesRegex(packd.Error, "dtype 'int8'"):
            verify.probe(models.varlen, self.batch, dtype="int8")


if __name__ == "__main__":
    unittest.main()
