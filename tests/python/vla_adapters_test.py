"""packd.adapters qwen2_5_vl and pi0: every key of a batch made by hand, what they refuse, and cameras that a feed drops, from the daemon."""

import unittest

import numpy
import torch

import harness
import packd
from packd import adapters

IMAGE, PAD = 9, -100
# One row of 16: eight tokens with an image of 2 x 4 patches, five with one of 2 x 2, three of padding.
TOKENS = [1, IMAGE, IMAGE, 2, 3, 4, 5, 6, 7, IMAGE, 8, 8, 8, 0, 0, 0]
LABELS = [PAD, PAD, PAD, 2, 3, 4, 5, 6, PAD, PAD, 8, 8, 8, PAD, PAD, PAD]
TIME = [0, 1, 1, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 0, 1, 2]
COLUMN = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 0, 1, 2]
CU = [0, 8, 13, 16]
MEDIA = ("pixel_values", "image_grid_thw", "vision_cu_seqlens", "vision_window_index", "vision_window_cu_seqlens")


def make(**changes):
    """The batch; changes: arrays instead of its own, None takes one away."""
    labels = numpy.array([LABELS], "int32")
    arrays = {
        "tokens": numpy.array([TOKENS], "int32"), "cu_seqlens": numpy.array(CU, "int32"), "seq_lens": numpy.array([8, 5, 0], "int32"),
        "sample_index": numpy.array([0, 1, -1], "int32"), "positions": numpy.array([[TIME], [TIME], [COLUMN]], "int32"),
        "segment_ids": numpy.array([[1] * 8 + [2] * 5 + [0] * 3], "int32"), "labels": labels, "loss_weight": (labels != PAD).astype("float32"),
        "pixel_values": numpy.arange(24, dtype="float32").reshape(12, 2), "image_grid_thw": numpy.array([[1, 2, 4], [1, 2, 2]]),
        "vision_cu_seqlens": numpy.array([0, 8, 12], "int32"), "vision_window_index": numpy.array([0, 1, 2], "int32"),
        "vision_window_cu_seqlens": numpy.array([0, 4, 8, 12], "int32"),
        "state": numpy.array([[0.5], [1.5]], "float32"), "action": numpy.arange(12, dtype="float32").reshape(2, 3, 2),
        "action_is_pad": numpy.array([[False] * 3, [False, True, True]]), "action_loss_weight": numpy.array([[1, 1, 1], [2, 0, 0]], "float32"),
        "image_base": numpy.arange(16, dtype="uint8").reshape(2, 2, 2, 2), "image_base_cu_seqlens": numpy.array([0, 1, 2], "int32"),
        "image_wrist": numpy.full((1, 2, 2), 7, "uint8"), "image_wrist_cu_seqlens": numpy.array([0, 0, 1], "int32"),
        "image_gone": numpy.zeros((0, 3), "uint8"), "image_gone_cu_seqlens": numpy.array([0, 0, 0], "int32")}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    totals = {"loss": {"tokens": {"count": 8, "weight": 8.0}, "action": {"count": 4, "weight": 5.0}}}
    return packd.Batch.from_arrays(arrays, {"samples": [{"seq": 0}, {"seq": 1}], "step_totals": totals})


class Case(unittest.TestCase):
    def expect(self, output, **wanted):
        """Each key: (dtype, values), or a plain value; nothing else is there."""
        self.assertEqual(list(output), list(wanted))
        for name, value in wanted.items():
            with self.subTest(name):
                if isinstance(value, tuple):
                    dtype, values = value
                    self.assertEqual(str(output[name].dtype).removeprefix("torch."), dtype)
                    self.assertEqual(output[name].tolist(), values)
                else:
                    self.assertEqual((type(output[name]), output[name]), (type(value), value))


class QwenTest(Case):
    adapter = adapters.get("qwen2_5_vl")

    def decoder(self):
        return {"input_ids": ("int64", [TOKENS]), "labels": ("int64", [LABELS]), "position_ids": ("int64", [[TIME], [TIME], [COLUMN]]),
                "cu_seq_lens_q": ("int32", CU), "cu_seq_lens_k": ("int32", CU), "max_length_q": 8, "max_length_k": 8}

    def test_keys(self):
        batch = make()
        output = self.adapter(batch, placeholders=[IMAGE])
        self.assertEqual(tuple(output), self.adapter.keys)
        self.expect(output, **self.decoder(), pixel_values=("float32", batch["pixel_values"].tolist()),
                    image_grid_thw=("int64", [[1, 2, 4], [1, 2, 2]]), vision_cu_seqlens=("int32", [0, 8, 12]), vision_max_seqlen=8,
                    window_index=("int32", [0, 1, 2]), cu_window_seqlens=("int32", [0, 4, 8, 12]), window_max_seqlen=4)
        self.assertEqual(list(output["position_ids"].shape), [3, 1, 16])
        self.assertIs(output["cu_seq_lens_q"], output["cu_seq_lens_k"])
        self.assertEqual(output["pixel_values"].data_ptr(), batch["pixel_values"].ctypes.data, "patches are not copied")

    def test_what_a_batch_may_lack(self):
        self.expect(self.adapter(make(vision_window_index=None, vision_window_cu_seqlens=None), framework="numpy", pixels=None), **self.decoder(),
                    image_grid_thw=("int64", [[1, 2, 4], [1, 2, 2]]), vision_cu_seqlens=("int32", [0, 8, 12]), vision_max_seqlen=8)
        tokens = numpy.array([TOKENS], "int32") % IMAGE
        text = self.adapter(make(tokens=tokens, **dict.fromkeys(MEDIA)), placeholders=[IMAGE])
        self.expect(text, **self.decoder() | {"input_ids": ("int64", tokens.tolist())})
        empty = {"pixel_values": numpy.zeros((0, 2), "float32"), "image_grid_thw": numpy.zeros((0, 3), "int64"), "vision_cu_seqlens": numpy.zeros(1, "int32"),
                 "vision_window_index": numpy.zeros(0, "int32"), "vision_window_cu_seqlens": numpy.zeros(1, "int32")}
        output = self.adapter(make(tokens=tokens, **empty), placeholders=[IMAGE])
        self.assertEqual((output["vision_max_seqlen"], list(output["pixel_values"].shape)), (0, [0, 2]))

    def test_refused(self):
        for changes, options, error, said in (
                ({"positions": numpy.array([TIME], "int32")}, {}, packd.Mismatch, "set `positions: mrope`"),
                ({"pixel_values": None}, {}, packd.InvalidArgument, "no tensor 'pixel_values'.*pixels="),
                ({"pixel_values": numpy.zeros((11, 2), "float32")}, {}, packd.Mismatch, "has 11 rows, the grids give 12 patches"),
                ({}, {"placeholders": [8, IMAGE]}, packd.Mismatch, "6 placeholder tokens for 12 patches: expected 3, one for 4 patches each"),
                (dict.fromkeys(MEDIA), {"placeholders": [IMAGE]}, packd.Mismatch, "3 placeholder tokens for 0 patches")):
            with self.subTest(said), self.assertRaisesRegex(error, said):
                self.adapter(make(**changes), **options)

    def test_context_parallel_share(self):
        index = self.adapter.indices(make(cu_seqlens=numpy.array([0, 8, 16], "int32")), 2, 1)
        share = self.adapter(make(cu_seqlens=numpy.array([0, 8, 16], "int32"), seq_lens=numpy.array([8, 5], "int32"),
                                  sample_index=numpy.array([0, 1], "int32")), cp_size=2, cp_rank=1)
        self.assertEqual(share["input_ids"].tolist(), [[TOKENS[i] for i in index]])
        self.assertEqual(share["position_ids"][2].tolist(), [[COLUMN[i] for i in index]])
        self.assertEqual(len(share["pixel_values"]), 12)
        self.assertIn("shift_labels", share)


class Pi0Test(Case):
    adapter = adapters.get("pi0")

    def test_keys(self):
        batch = make()
        output = self.adapter(batch, media_tokens=[IMAGE])
        self.assertEqual(tuple(output), self.adapter.keys)
        images, masks = output.pop("images"), output.pop("image_masks")
        self.expect(images, base=("uint8", batch["image_base"].tolist()), wrist=("uint8", [[[0, 0], [0, 0]], [[7, 7], [7, 7]]]))
        self.expect(masks, base=("bool", [True, True]), wrist=("bool", [False, True]))
        self.assertEqual(images["base"].data_ptr(), batch["image_base"].ctypes.data, "images that all samples have are not copied")
        self.expect(output, state=("float32", [[0.5], [1.5]]), actions=("float32", batch["action"].tolist()),
                    action_is_pad=("bool", [[False] * 3, [False, True, True]]), action_loss_weight=("float32", [[1, 1, 1], [2, 0, 0]]),
                    action_denominator=5.0, tokenized_prompt=("int64", [[1, 2, 3, 4, 5, 6], [7, 8, 8, 8, 0, 0]]),
                    tokenized_prompt_mask=("bool", [[True] * 6, [True] * 4 + [False] * 2]))

    def test_length_of_the_prompt(self):
        for options, length in (({}, 8), ({"media_tokens": [IMAGE], "multiple": 4}, 8), ({"multiple": 16, "max_length": 10}, 10),
                                ({"max_length": 200}, 8), ({"max_length": 200, "pad_to_max": True}, 200)):
            self.assertEqual(list(self.adapter(make(), **options)["tokenized_prompt"].shape), [2, length], options)
        with self.assertRaisesRegex(packd.LimitExceeded, "the prompt of row 0 has 8 tokens, max_length is 7"):
            self.adapter(make(), max_length=7)
        with self.assertRaisesRegex(packd.InvalidArgument, "max_length with pad_to_max"):
            self.adapter(make(), pad_to_max=True)

    def test_named_cameras_are_always_there(self):
        output = self.adapter(make(), cameras={"top": "image_base", "gone": "image_gone"}, framework="numpy")
        self.assertEqual({name: (image.shape, mask.tolist()) for (name, image), mask in zip(output["images"].items(), output["image_masks"].values())},
                         {"top": ((2, 2, 2, 2), [True, True]), "gone": ((2, 3), [False, False])})

    def test_refused(self):
        split = make()
        split.header["samples"].part[1] = 1
        for batch, options, error, said in (
                (make(action_loss_weight=None), {}, packd.InvalidArgument, "push action with loss=True and pad_mask=\"action_is_pad\""),
                (make(state=None), {}, packd.InvalidArgument, "no tensor 'state'"),
                (make(), {"cameras": {"a": "image_a"}}, packd.InvalidArgument, "no tensor 'image_a'"),
                (make(image_base_cu_seqlens=numpy.array([0, 0, 2], "int32")), {}, packd.Mismatch, "image_base: row 1 has 2 images"),
                (split, {}, packd.Mismatch, "row 1 of the batch is part of a split sample"),
                (make(cu_seqlens=numpy.array([0, 8, 16], "int32")), {"cp_size": 2}, packd.InvalidArgument, "no context-parallel share")):
            with self.subTest(said), self.assertRaisesRegex(error, said):
                self.adapter(batch, **options)

    def test_cameras_that_the_feed_drops(self):
        rng = numpy.random.default_rng(3)
        cameras, pushed = ("base", "wrist"), []
        for number in range(12):
            prompt = rng.integers(10, 90, rng.integers(1, 20)).tolist()
            is_pad = numpy.arange(4) >= rng.integers(1, 5)
            images = {camera: rng.integers(0, 256, (1, 4, 4, 3)).astype("uint8") for camera in cameras[:1 + (number % 3 > 0)]}
            tensors = {f"image_{camera}": packd.Tensor(image, axis="ragged", unit="span", views=(camera,)) for camera, image in images.items()}
            tensors |= {"state": packd.Tensor(rng.random(3, "float32"), axis="sample"), "action_is_pad": packd.Tensor(is_pad, axis="sample"),
                        "action": packd.Tensor(rng.random((4, 2), "float32"), axis="sample", loss=True, pad_mask="action_is_pad")}
            spans = [packd.Span(offset=2 * at, length=2, view=camera) for at, camera in enumerate(images)]
            pushed.append((prompt, images, {"tokens": [IMAGE] * 2 * len(images) + prompt, "spans": spans, "tensors": tensors}))
        feeds = [{"name": "whole", "seq_len": 32}, {"name": "pruned", "seq_len": 32, "drop_views": {"robot": ["wrist"]}}]
        with harness.Daemon(feeds=feeds) as server:
            for feed, kept in (("whole", cameras), ("pruned", cameras[:1])):
                with packd.Producer(server.address, feed=feed, stream=f"{feed}-robot", source="robot") as producer:
                    producer.push(sample for _, _, sample in pushed)
                    producer.end_feed()
                with packd.Job(server.address, feed=feed, job="j", rows=2) as job:
                    seen = [self.audit(batch, pushed, kept) for batch in job]
                self.assertEqual(sorted(seq for seqs, _ in seen for seq in seqs), list(range(12)))
                self.assertEqual({camera for _, found in seen for camera in found}, set(kept))

    def audit(self, batch, pushed, kept):
        output = self.adapter(batch, media_tokens=[IMAGE], framework="numpy")
        self.assertIn("base", output["images"])
        length = max(len(pushed[seq][0]) for seq in batch.samples.seq)
        self.assertEqual(output["tokenized_prompt"].shape, (len(batch.samples), length))
        for row, seq in enumerate(batch.samples.seq.tolist()):
            prompt, images, sample = pushed[seq]
            self.assertEqual(output["tokenized_prompt"][row][output["tokenized_prompt_mask"][row]].tolist(), prompt)
            for camera in output["images"]:
                self.assertEqual(output["image_masks"][camera][row], camera in images)
                numpy.testing.assert_array_equal(output["images"][camera][row], images[camera][0] if camera in images else 0)
            numpy.testing.assert_array_equal(output["actions"][row], sample["tensors"]["action"].values)
            numpy.testing.assert_array_equal(output["action_loss_weight"][row], ~sample["tensors"]["action_is_pad"].values)
        return batch.samples.seq.tolist(), list(output["images"])

    def test_torch(self):
        output = self.adapter(make())
        self.assertTrue(all(isinstance(tensor, torch.Tensor) for tensor in (*output["images"].values(), output["actions"])))


if __name__ == "__main__":
    unittest.main()
