"""packd.adapters: keys, dtypes, shapes and conventions of each consumer, and equal losses for packed and single samples through each."""

import unittest

import numpy
import torch

import models
import packd
import packd.torch
from packd import adapters, testing, verify
from packd.adapters import flash_attn, flex, trl, zigzag

torch.set_num_threads(1)

# Two rows of 16: lengths 3, 5, 4 in slots of 4, 8, 4, and 7 in one of 8; row 1 ends with 8 positions of padding.
LISTS = [[11, 12, 13], [21, 22, 23, 24, 25], [31, 32, 33, 34], [41, 42, 43, 44, 45, 46, 47]]
CU = [0, 4, 12, 16, 24, 32]
REAL, PADDED = [0, 3, 8, 12, 19], [0, 4, 12, 16, 32]
GAP = [3, 9, 10, 11, 23]
TEXT = [name for name in adapters.names() if name not in ("qwen2_5_vl", "pi0")]  # those need media: vla_adapters_test.py


def make(lists=LISTS, **rules):
    return testing.make_batch(lists, **{"width": 16, "seg_align": 4, "pad_segment": 8, **rules})


def flat(tensor):
    return numpy.asarray(tensor).reshape(-1).tolist()


class KeysTest(unittest.TestCase):
    def setUp(self):
        self.batch = make()
        self.tokens, self.labels = flat(self.batch["tokens"]), flat(self.batch["labels"])
        self.shifted = self.labels[1:] + [-100]
        self.positions = [t - max(c for c in CU if c <= t) for t in range(32)]

    def expect(self, output, **wanted):
        """Each key: (dtype, shape, values); nothing else is there."""
        self.assertEqual(list(output), list(wanted))
        for name, (dtype, shape, values) in wanted.items():
            with self.subTest(name):
                self.assertEqual(str(output[name].dtype).removeprefix("torch."), dtype)
                self.assertEqual(list(output[name].shape), shape)
                self.assertEqual(flat(output[name]), values)

    def test_hf(self):
        output = adapters.get("hf")(self.batch)
        for name in ("max_length_q", "max_length_k"):
            self.assertIs(type(output[name]), int)
            self.assertEqual(output.pop(name), 8)
        self.assertIs(output["cu_seq_lens_q"], output["cu_seq_lens_k"])
        self.assertNotIn("attention_mask", output)
        row = [1, 32]
        self.expect(output, input_ids=("int64", row, self.tokens), labels=("int64", row, self.labels),
                    position_ids=("int64", row, self.positions), cu_seq_lens_q=("int32", [6], CU), cu_seq_lens_k=("int32", [6], CU),
                    seq_idx=("int32", row, [max(i for i, c in enumerate(CU) if c <= t) for t in range(32)]))
        self.assertEqual({self.labels[c] for c in CU[:-1]}, {-100})
        self.assertEqual(flat(adapters.get("hf")(self.batch, position_ids_start=2)["position_ids"]), [p + 2 for p in self.positions])

    def test_trl(self):
        output = adapters.get("trl")(self.batch)
        row = [1, 32]
        self.expect(output, input_ids=("int64", row, self.tokens), labels=("int64", row, self.labels),
                    position_ids=("int64", row, self.positions))
        self.assertTrue((output["labels"][output["position_ids"] == 0] == -100).all())
        rows = trl.rows(self.batch)
        self.assertEqual([row["seq_lengths"] for row in rows], [[4, 8, 4], [8, 8]])
        self.assertEqual(sum((row["input_ids"] for row in rows), []), self.tokens)
        rebuilt = [p for row in rows for n in row["seq_lengths"] for p in range(n)]
        self.assertEqual(rebuilt, self.positions)
        self.assertEqual([row["seq_lengths"] for row in trl.rows(make(fixed_segments=9))], [[4, 8, 4], [8, 8]])

    def test_flash_attn(self):
        output = adapters.get("flash_attn")(self.batch)
        self.assertIs(output["cu_seqlens_q"], output["cu_seqlens_k"])
        self.assertEqual((output.pop("max_seqlen_q"), output.pop("max_seqlen_k")), (8, 8))
        self.expect(output, cu_seqlens_q=("int32", [6], CU), cu_seqlens_k=("int32", [6], CU))

    def test_flash_attn_refuses_signatures_it_does_not_know(self):
        def version_2(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
                      window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None):
            return cu_seqlens_q, max_seqlen_k, causal, softmax_scale

        def version_4(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_q=None, causal=False):
            return causal

        def renamed(q, k, v, cu_seq_q, cu_seq_k, max_seqlen_q, max_seqlen_k, causal=False):
            raise AssertionError("never called")

        def more(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table, causal=False):
            raise AssertionError("never called")

        def anything(*args, **kwargs):
            raise AssertionError("never called")
        flash_attn.check(version_4)
        cu, longest, causal, scale = flash_attn.bind(version_2, self.batch, softmax_scale=2.0)(0, 0, 0)
        self.assertEqual((cu.dtype, longest, causal, scale), (torch.int32, 8, True, 2.0))
        for function, said in ((renamed, "renamed.*missing cu_seqlens_q, cu_seqlens_k; needs cu_seq_q, cu_seq_k"),
                               (more, "more.*needs block_table"), (anything, "anything.*missing q, k, v")):
            with self.assertRaisesRegex(packd.errors.Unsupported, said):
                flash_attn.bind(function, self.batch)

    def test_flex(self):
        documents = [0, 0, 0, 1, *[2] * 5, 3, 3, 3, *[4] * 4, *[5] * 7, 6, *[7] * 8]
        row = [1, 32]
        output = adapters.get("flex")(self.batch)
        self.expect(output, tokens=("int32", row, self.tokens), labels=("int32", row, self.labels),
                    loss_weight=("float32", row, flat(self.batch["loss_weight"])), positions=("int32", row, self.positions),
                    document_id=("int32", [32], documents), offsets=("int32", [9], [0, 3, 4, 9, 12, 16, 23, 24, 32]))
        at = torch.arange(32)
        seen = flex.mask_mod(output["document_id"])(0, 0, at[:, None], at[None, :])
        self.assertTrue(torch.equal(seen, torch.tensor([[documents[q] == documents[k] and q >= k for k in range(32)] for q in range(32)])))
        self.assertTrue(flex.mask_mod(output["document_id"], causal=False)(0, 0, at[0], at[2]))
        by_row = flex.mask_mod(torch.from_numpy(flex.rows(self.batch)), causal=False)
        self.assertEqual(by_row(1, 0, at[:16, None], at[None, :16]).sum(), 7 * 7 + 1 + 8 * 8)

    def test_sdpa(self):
        documents = flex.document_ids(self.batch).reshape(2, 16)
        mask = [documents[r, q] == documents[r, k] and q >= k for r in range(2) for q in range(16) for k in range(16)]
        rows = [2, 16]
        self.expect(adapters.get("sdpa")(self.batch), tokens=("int32", rows, self.tokens), labels=("int32", rows, self.labels),
                    loss_weight=("float32", rows, flat(self.batch["loss_weight"])), positions=("int32", rows, self.positions),
                    attn_mask=("bool", [2, 1, 16, 16], mask))
        with self.assertRaisesRegex(packd.errors.LimitExceeded, "512 bytes, over mask_bytes = 511"):
            adapters.get("sdpa")(self.batch, mask_bytes=511)

    def test_megatron(self):
        output = adapters.get("megatron")(self.batch)
        packed = output.pop("packed_seq_params")
        row = [1, 32]
        self.expect(output, tokens=("int64", row, self.tokens), labels=("int64", row, [max(0, label) for label in self.shifted]),
                    loss_mask=("float32", row, [float(label != -100) for label in self.shifted]),
                    position_ids=("int64", row, self.positions),
                    padding_mask=("bool", row, [t in GAP or t >= 24 for t in range(32)]))
        plain = {name: packed.pop(name) for name in ("qkv_format", "max_seqlen_q", "max_seqlen_kv", "total_tokens")}
        self.assertEqual(plain, {"qkv_format": "thd", "max_seqlen_q": 16, "max_seqlen_kv": 16, "total_tokens": 32})
        self.assertIs(packed["cu_seqlens_q"], packed["cu_seqlens_kv"])
        self.expect(packed, cu_seqlens_q=("int32", [5], REAL), cu_seqlens_kv=("int32", [5], REAL),
                    cu_seqlens_q_padded=("int32", [5], PADDED), cu_seqlens_kv_padded=("int32", [5], PADDED))
        fields = adapters.get("megatron")(self.batch, pad_between_seqs=True, drop=("total_tokens",))["packed_seq_params"]
        self.assertTrue(fields["pad_between_seqs"])
        self.assertNotIn("total_tokens", fields)
        full = testing.make_batch([[1] * 16, [2] * 16], width=16)
        self.assertFalse(adapters.get("megatron")(full, pad_between_seqs=True)["packed_seq_params"]["pad_between_seqs"])

    def test_torchtitan(self):
        inputs, labels = adapters.get("torchtitan")(self.batch)
        self.expect(inputs | {"labels": labels}, input=("int64", [32], self.tokens), positions=("int64", [32], self.positions),
                    labels=("int64", [32], self.shifted))
        inputs, labels = adapters.get("torchtitan")(self.batch, flat=False, extras=("loss_weight",))
        self.assertEqual([list(array.shape) for array in (*inputs.values(), labels)][:2] + [list(labels.shape)], [[2, 16]] * 3)

    def test_maxtext(self):
        segments = flat(self.batch["segment_ids"])
        rows = [2, 16]
        output = adapters.get("maxtext")(self.batch)
        self.assertTrue(all(isinstance(array, numpy.ndarray) for array in output.values()))
        self.expect(output, inputs=("int32", rows, self.tokens), targets=("int32", rows, [max(0, label) for label in self.shifted]),
                    inputs_position=("int32", rows, self.positions), targets_position=("int32", rows, self.positions),
                    inputs_segmentation=("int32", rows, segments),
                    targets_segmentation=("int32", rows, [s if label != -100 else 0 for s, label in zip(segments, self.shifted)]))
        self.assertEqual(segments[:4] + segments[24:26], [1, 1, 1, 0, 0, 0])

    def test_mamba(self):
        index = [*[0] * 4, *[1] * 8, *[2] * 4, *[0] * 8, *[1] * 8]
        rows = [2, 16]
        self.expect(adapters.get("mamba")(self.batch), input_ids=("int64", rows, self.tokens), labels=("int64", rows, self.labels),
                    position_ids=("int64", rows, self.positions), seq_idx=("int32", rows, index))
        skipped = flat(adapters.get("mamba")(self.batch, padding=-1)["seq_idx"])
        self.assertEqual(skipped, [-1 if t in GAP or t >= 24 else index[t] for t in range(32)])

    def test_numpy_and_jax(self):
        for name in ("numpy", "jax"):
            output = adapters.get(name)(self.batch)
            self.assertEqual(list(output), list(self.batch))
            self.assertTrue(all(output[key] is self.batch[key] for key in output))
        self.assertEqual(list(adapters.get("jax")(self.batch, names=("tokens", "labels"))), ["tokens", "labels"])
        with self.assertRaisesRegex(packd.errors.InvalidArgument, "no token"):
            adapters.get("jax")(self.batch, names=("token",))

    def test_table(self):
        self.assertEqual(adapters.names(), ["hf", "trl", "flash_attn", "flex", "sdpa", "megatron", "torchtitan", "maxtext", "mamba",
                                            "qwen2_5_vl", "pi0", "numpy", "jax"])
        for wrong in ("hugging", None, ["hf"]):
            with self.assertRaisesRegex(packd.errors.InvalidArgument, "unknown adapter .*hf, trl, flash_attn, .*, jax"):
                adapters.get(wrong)
        for name in TEXT:
            output = adapters.get(name)(self.batch)
            keys = [*output[0], "labels"] if name == "torchtitan" else list(output)
            if name not in ("numpy", "jax"):
                self.assertEqual(sorted(keys), sorted(adapters.get(name).keys), "the keys that the adapter states")

    def test_memory_is_shared_where_the_dtype_allows(self):
        packed = adapters.get("sdpa")(self.batch)
        for name in ("tokens", "labels", "loss_weight", "positions"):
            self.assertEqual(packed[name].data_ptr(), self.batch[name].ctypes.data, name)
        hf = adapters.get("hf")(self.batch)
        self.assertEqual(hf["cu_seq_lens_q"].data_ptr(), self.batch["cu_seqlens"].ctypes.data)
        mask = adapters.get("megatron")(make(labels="shifted"))
        self.assertEqual(mask["tokens"].dtype, torch.int64)
        self.batch["tokens"].flags.writeable = False
        self.assertNotEqual(adapters.get("sdpa")(self.batch)["tokens"].data_ptr(), self.batch["tokens"].ctypes.data)

    def test_batches_of_tensors(self):
        held = packd.torch.TensorBatch.of(self.batch)
        for name in TEXT:
            first, second = adapters.get(name)(held, framework="numpy"), adapters.get(name)(self.batch, framework="numpy")
            self.assertEqual(str(first), str(second), name)
        self.assertEqual(trl.rows(held), trl.rows(self.batch))
        self.assertEqual(flex.rows(held).tolist(), flex.rows(self.batch).tolist())
        self.assertEqual(verify.structure(held), [])

    def test_mrope_positions(self):
        positions = numpy.stack([self.batch["positions"] + k for k in range(3)]).astype("int32")
        batch = packd.Batch.from_arrays(dict(self.batch.items()) | {"positions": positions}, self.batch.header)
        self.assertEqual(list(adapters.get("hf")(batch)["position_ids"].shape), [3, 1, 32])
        self.assertEqual(flat(adapters.get("hf")(batch)["position_ids"][2, 0]), [p + 2 for p in self.positions])
        share = adapters.get("hf")(batch, cp_size=2, cp_rank=0)["position_ids"]
        self.assertEqual(list(share.shape), [3, 1, 16])
        self.assertEqual(list(adapters.get("sdpa")(batch, cp_size=2, cp_rank=0)["positions"].shape), [3, 2, 8])


class LabelsTest(unittest.TestCase):
    def test_conversion_is_exact_both_ways(self):
        lists = models.samples(40, seed=5)
        masked = [{"tokens": tokens, "loss_mask": [t % 3 != 1 for t in range(len(tokens))], "weight": 1 + n % 3}
                  for n, tokens in enumerate(lists)]
        for rules in ({}, {"seg_align": 4}, {"loss_weight": "sample"}, {"fixed_segments": 70}):
            unshifted = make(masked, labels="unshifted", **rules)
            shifted = make(masked, labels="shifted", **rules)
            for name in TEXT:
                if name in ("flash_attn", "flex", "sdpa", "numpy", "jax"):
                    continue
                with self.subTest(name, **rules):
                    first, second = (adapters.get(name)(batch, extras=("loss_weight",), framework="numpy")
                                     for batch in (unshifted, shifted))
                    if name == "torchtitan":
                        first, second = ({**inputs, "labels": labels} for inputs, labels in (first, second))
                    for key in first:
                        if isinstance(first[key], numpy.ndarray):
                            numpy.testing.assert_array_equal(first[key], second[key], key)

    def test_refused_where_conversion_is_not_wanted(self):
        with self.assertRaisesRegex(packd.errors.Mismatch, "adapter megatron needs shifted labels, the feed serves unshifted"):
            adapters.get("megatron")(make(), convert=False)
        adapters.get("megatron")(make(labels="shifted"), convert=False)
        adapters.get("jax")(make(), convert=False)

    def test_labels_that_cross_a_boundary(self):
        for convention, at, adapter in (("unshifted", 4, "maxtext"), ("shifted", 3, "hf")):
            batch = make(labels=convention)
            batch["labels"].reshape(-1)[at] = 7
            with self.assertRaisesRegex(packd.errors.Mismatch, "crosses the segment boundary at 4"):
                adapters.get(adapter)(batch)

    def test_weights_that_no_key_carries(self):
        weighted = make([{"tokens": [1, 2, 3], "weight": 0.5}, [4, 5, 6]])
        for name in ("hf", "trl", "torchtitan", "maxtext", "mamba"):
            with self.assertRaisesRegex(packd.errors.Mismatch, "one has 0.5.*no key of adapter " + name):
                adapters.get(name)(weighted)
            adapters.get(name)(weighted, extras=("loss_weight",))
        self.assertEqual(flat(adapters.get("megatron")(weighted)["loss_mask"])[:3], [0.5, 0.5, 0])
        silent = make([{"tokens": [1, 2, 3], "weight": 0.0}, [4, 5, 6]])
        self.assertEqual(flat(adapters.get("hf")(silent)["labels"])[:7], [-100] * 3 + [-100, -100, 5, 6])

    def test_extras(self):
        batch = make([{"tokens": tokens, "tensors": {"advantage": numpy.array(tokens, "float32") / 2, "id": numpy.int64(tokens[0])}}
                      for tokens in LISTS])
        row = adapters.get("hf")(batch, extras=("advantage", "id"))
        self.assertEqual(list(row["advantage"].shape), [1, 32])
        self.assertEqual(row["id"].tolist(), [11, 21, 31, 41])
        self.assertEqual(list(adapters.get("maxtext")(batch, extras=("advantage",))["advantage"].shape), [2, 16])
        for name in TEXT:
            output = adapters.get(name)(batch, extras=("advantage",))
            shape = [2, 16] if name in ("sdpa", "maxtext", "mamba", "numpy", "jax") else [32] if name == "torchtitan" else [1, 32]
            output = output[0] if name == "torchtitan" else output
            self.assertEqual(list(output["advantage"].shape), shape, name)
            like = next((output[key] for key in ("tokens", "input_ids", "inputs", "input") if key in output), None)
            if like is not None:
                self.assertEqual(flat(output["advantage"]), [t / 2 for t in flat(like)], name)
        rows, _ = adapters.get("torchtitan")(batch, extras=("advantage",), flat=False)
        self.assertEqual(list(rows["advantage"].shape), list(rows["input"].shape))
        share = adapters.get("jax")(batch, cp_size=2, cp_rank=1)
        self.assertEqual(flat(share["advantage"]), [t / 2 for t in flat(share["tokens"])])
        with self.assertRaisesRegex(packd.errors.InvalidArgument, "no array 'advantages'"):
            adapters.get("hf")(batch, extras=("advantages",))
        half = packd.Batch(dict(batch.items()) | {"half": numpy.full((2, 16), 0x3fc0, "uint16")}, batch.header,
                           dtypes=batch.dtypes | {"half": "bfloat16"})
        self.assertEqual(adapters.get("hf")(half, extras=("half",))["half"].float().unique().tolist(), [1.5])


class ContextParallelTest(unittest.TestCase):
    def test_every_position_once_and_equal_work(self):
        cu = numpy.cumsum([0, 8, 16, 4, 20, 8])
        for size in (1, 2):
            parts = [zigzag.segments(cu, size, rank) for rank in range(size)]
            self.assertEqual(sorted(numpy.concatenate(parts)), list(range(56)))
            start = numpy.repeat(cu[:-1], numpy.diff(cu))
            work = [int((part - start[part] + 1).sum()) for part in parts]
            self.assertEqual(len(set(work)), 1, "keys seen, summed over the queries")
        self.assertEqual(zigzag.segments(numpy.array([0, 8, 12]), 2, 0).tolist(), [0, 1, 6, 7, 8, 11])
        self.assertEqual(zigzag.segments(numpy.array([0, 8, 12]), 2, 1).tolist(), [2, 3, 4, 5, 9, 10])
        self.assertEqual(zigzag.rows(2, 8, 2, 1).tolist(), [2, 3, 4, 5, 10, 11, 12, 13])
        whole = numpy.arange(24).reshape(2, 12)
        parts = [zigzag.segments(numpy.array([0, 8, 12]), 2, rank) for rank in range(2)]
        numpy.testing.assert_array_equal(zigzag.restore([whole[:, part] for part in parts], parts, axis=1), whole)

    def test_bad_sizes(self):
        with self.assertRaisesRegex(packd.errors.InvalidArgument, "segment 0 has 4 positions, which 2 x cp_size = 8 does not divide"):
            adapters.get("hf")(make(), cp_size=4)
        with self.assertRaisesRegex(packd.errors.InvalidArgument, "cp_rank 2 of cp_size 2"):
            adapters.get("hf")(make(), cp_size=2, cp_rank=2)

    def test_shares_of_every_adapter(self):
        batch, shifted = make(), make(labels="shifted")
        for name in TEXT:
            adapter = adapters.get(name)
            with self.subTest(name):
                whole = adapter(shifted, framework="numpy")
                shares = [adapter(batch, framework="numpy", cp_size=2, cp_rank=rank) for rank in range(2)]
                index = [adapter.indices(batch, 2, rank) for rank in range(2)]
                if name == "torchtitan":
                    whole, shares = whole[0] | {"labels": whole[1]}, [share[0] | {"labels": share[1]} for share in shares]
                elif name in ("hf", "trl", "mamba"):
                    self.assertNotIn("labels", shares[0])
                    whole["shift_labels"] = flat_shifted(shifted, whole.pop("labels").shape)
                for key in adapter.token_axes:
                    key = "shift_labels" if key == "labels" and "shift_labels" in whole else key
                    if key == "attn_mask":
                        continue
                    joined = zigzag.restore([share[key].reshape(-1) for share in shares], index)
                    self.assertEqual(flat(joined), flat(whole[key]), key)

    def test_boundaries_of_a_share(self):
        ring = adapters.get("flash_attn")(make(), cp_size=2, cp_rank=1)
        self.assertEqual(ring["cu_seqlens_q"].tolist(), [c // 2 for c in CU])
        self.assertEqual((ring["max_seqlen_q"], ring["max_seqlen_k"]), (4, 4))
        packed = adapters.get("megatron")(make(), cp_size=2, cp_rank=1)["packed_seq_params"]
        self.assertEqual(packed["cu_seqlens_q_padded"].tolist(), PADDED, "TransformerEngine divides by itself")
        mask = adapters.get("sdpa")(make(), cp_size=2, cp_rank=0)["attn_mask"]
        self.assertEqual(list(mask.shape), [2, 1, 8, 16])
        index = adapters.get("flex").indices(make(), 2, 1)
        document = torch.from_numpy(flex.document_ids(make()))
        seen = flex.mask_mod(document, query_index=torch.from_numpy(index))(0, 0, torch.arange(16)[:, None], torch.arange(32)[None])
        full = flex.mask_mod(document)(0, 0, torch.arange(32)[:, None], torch.arange(32)[None])
        self.assertTrue(torch.equal(seen, full[index]))


def flat_shifted(batch, shape):
    return batch["labels"].reshape(shape)


class LossTest(unittest.TestCase):
    """Per-sample losses of one transformer, packed through each adapter and alone, in float32."""

    @classmethod
    def setUpClass(cls):
        cls.lists = models.samples(14, seed=2, longest=24)
        cls.model = models.Transformer().requires_grad_(False)
        cls.recurrent = models.Recurrent().requires_grad_(False)
        cls.alone = [cls.single(cls.model, tokens) for tokens in cls.lists]

    @staticmethod
    def single(model, tokens):
        ids = torch.tensor([tokens])
        n = len(tokens)
        logits = (model(ids, torch.arange(n)[None], models.dense(torch.ones(n, n, dtype=torch.bool).tril()))
                  if isinstance(model, models.Transformer) else model(ids, torch.zeros_like(ids)))
        return float(torch.nn.functional.cross_entropy(logits[0, :-1].double(), ids[0, 1:], reduction="sum")) if n > 1 else 0.0

    def compare(self, losses, batch, alone=None):
        """losses: by position of the flattened batch, in either convention."""
        packed = [0.0] * len(self.lists)
        for segment in numpy.flatnonzero(batch["seq_lens"] > 0):
            begin, end = batch["cu_seqlens"][segment:segment + 2]
            packed[batch.samples.seq[batch["sample_index"][segment]]] = float(losses[begin:end].sum())
        for one, other in zip(packed, alone or self.alone):
            self.assertAlmostEqual(one, other, delta=1e-5 * max(1.0, abs(other)))

    def each(self):
        """Feeds that differ in what an adapter must cope with."""
        for rules in ({}, {"labels": "shifted"}, {"seg_align": 4, "labels": "shifted"}, {"seg_align": 4, "rows": 8},
                      {"fixed_segments": 40}):
            yield testing.make_batch(self.lists, **{"width": 32, "pad_segment": 8, **rules})

    def flat_model(self, tokens, positions, cu_seqlens, longest):
        attend = models.flattened(lambda q, k, v: models.varlen(q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True))
        return self.model(tokens.reshape(1, -1).long(), positions.reshape(1, -1).long(), attend)

    @staticmethod
    def from_positions(positions):
        """Boundaries as readers infer them who have positions alone."""
        starts = torch.nonzero(positions.reshape(-1) == 0).reshape(-1).int()
        cu = torch.cat([starts, torch.tensor([positions.numel()], dtype=torch.int32)])
        return cu, int(cu.diff().max())

    def test_hf(self):
        for batch in self.each():
            x = adapters.get("hf")(batch)
            logits = self.flat_model(x["input_ids"], x["position_ids"], x["cu_seq_lens_q"], x["max_length_q"])
            self.compare(models.token_losses(logits, x["labels"], shifted=False), batch)

    def test_trl(self):
        for batch in self.each():
            x = adapters.get("trl")(batch)
            logits = self.flat_model(x["input_ids"], x["position_ids"], *self.from_positions(x["position_ids"]))
            self.compare(models.token_losses(logits, x["labels"], shifted=False), batch)

    def test_flash_attn(self):
        for batch in self.each():
            attend = models.flattened(flash_attn.bind(models.varlen, batch))
            tokens, positions = (torch.from_numpy(batch[name]).reshape(1, -1) for name in ("tokens", "positions"))
            logits = self.model(tokens, positions, attend)
            self.compare(models.token_losses(logits, torch.from_numpy(batch["labels"]), batch.label_convention == "shifted"), batch)

    def test_flex(self):
        for batch in self.each():
            x = adapters.get("flex")(batch)
            at = torch.arange(x["tokens"].numel())
            mask = flex.mask_mod(x["document_id"])(0, 0, at[:, None], at[None, :])
            logits = self.model(x["tokens"], x["positions"], models.dense(mask))
            self.compare(models.token_losses(logits, x["labels"], batch.label_convention == "shifted"), batch)

    def test_sdpa(self):
        for batch in self.each():
            x = adapters.get("sdpa")(batch)
            logits = self.model(x["tokens"], x["positions"], models.dense(x["attn_mask"]))
            self.compare(models.token_losses(logits, x["labels"], batch.label_convention == "shifted"), batch)

    def test_megatron(self):
        for batch in self.each():
            x = adapters.get("megatron")(batch)
            packed = x["packed_seq_params"]
            physical, real = packed["cu_seqlens_q_padded"].tolist(), packed["cu_seqlens_q"].diff().tolist()

            def attend(q, k, v):  # thd: segment i lies at the padded offset and is as long as the real ones say
                out = torch.zeros_like(q)
                for begin, n in zip(physical, real):
                    if n:
                        cu = torch.tensor([0, n], dtype=torch.int32)
                        out[begin:begin + n] = models.varlen(*(x[begin:begin + n] for x in (q, k, v)), cu, cu, n, n, causal=True)
                return out
            logits = self.model(x["tokens"], x["position_ids"], models.flattened(attend))
            self.compare(models.token_losses(logits, x["labels"], shifted=True) * x["loss_mask"].reshape(-1), batch)

    def test_torchtitan(self):
        for batch in self.each():
            x, labels = adapters.get("torchtitan")(batch)
            logits = self.flat_model(x["input"], x["positions"], *self.from_positions(x["positions"]))
            self.compare(models.token_losses(logits, labels, shifted=True), batch)

    def test_maxtext(self):
        for batch in self.each():
            x = {name: torch.from_numpy(array) for name, array in adapters.get("maxtext")(batch).items()}
            segments = x["inputs_segmentation"]
            mask = (segments[:, None, :, None] == segments[:, None, None, :]) & torch.ones(32, 32, dtype=torch.bool).tril()
            losses = models.token_losses(self.model(x["inputs"], x["inputs_position"], models.dense(mask)), x["targets"], shifted=True)
            self.compare(losses * (x["targets_segmentation"].reshape(-1) != 0), batch)

    def test_mamba(self):
        alone = [self.single(self.recurrent, tokens) for tokens in self.lists]
        for batch in self.each():
            x = adapters.get("mamba")(batch)
            losses = models.token_losses(self.recurrent(x["input_ids"], x["seq_idx"]), x["labels"], shifted=False)
            self.compare(losses, batch, alone)

    def test_numpy(self):
        model = models.NumpyAttention()
        vocabulary = numpy.random.default_rng(4).normal(size=(8, models.VOCABULARY))

        def losses(tokens, positions, allowed, labels):  # labels shifted
            logits = model(tokens, positions, allowed) @ vocabulary
            logits -= numpy.log(numpy.exp(logits).sum(-1, keepdims=True))
            return numpy.where(labels == -100, 0, -numpy.take_along_axis(logits, numpy.maximum(labels, 0)[..., None], 2)[..., 0])
        alone = []
        for tokens in self.lists:
            n = len(tokens)
            labels = numpy.array([tokens[1:] + [-100]])
            alone.append(losses(numpy.array([tokens]), numpy.arange(n)[None], numpy.tri(n, dtype=bool), labels).sum())
        batch = testing.make_batch(self.lists, width=32, labels="shifted", seg_align=4)
        x = adapters.get("jax")(batch)
        same = x["segment_ids"][:, :, None] == x["segment_ids"][:, None, :]
        self.compare(losses(x["tokens"], x["positions"], same & numpy.tri(32, dtype=bool), x["labels"]).reshape(-1), batch, alone)


if __name__ == "__main__":
    unittest.main()
