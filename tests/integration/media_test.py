"""Media spans and named tensors pushed by a stock client: what is wrong is refused with the field, what was found and what was
expected; what is right is in the log, byte for byte, and its declarations outlive a restart."""

import json
import os
import struct
import unittest

import grpc
import numpy as np

import harness
from peer import Fetch, Push, end_feed, error_detail, open_job, pb

PAD = 900  # stands in media spans


def image(h=2, w=2, text=3, pixel=0.5, merge=4, **spans):
    """One sample of text, an image of h*w tokens, text; with its patches and a state. As keyword arguments of Push.block."""
    tokens = list(range(1, text + 1)) + [PAD] * (h * w) + list(range(1, text + 1))
    patches = h * w * merge
    pixels = np.full((patches, 6), pixel, "<f4")
    state = np.arange(4, dtype="<f4")
    spans = {"views": ["front"], "counts": [1], "view": [0], "offsets": [text], "lengths": [h * w], "patches": [patches],
             "grid_t": [1], "grid_h": [2 * h], "grid_w": [2 * w], "merge": merge} | spans
    tensors = [pb.TensorSpec(name="pixel_values", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_RAGGED, dims=[6], unit=pb.RAGGED_PATCH,
                             counts=[patches]),
               pb.TensorSpec(name="state", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_SAMPLE, dims=[4])]
    return {"samples": [tokens], "spans": pb.Spans(**spans), "tensors": tensors, "labels_bytes": pixels.tobytes() + state.tobytes()}


class MediaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        feeds = [{"name": "default", "seq_len": 64, "positions": "mrope", "max_patches": 64, "media_tokens": [PAD],
                  "vocab_size": 1000, "window": 4}]
        cls.daemon = harness.Daemon(feeds)
        cls.daemon.start()
        cls.streams = 0

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def push(self):
        type(self).streams += 1
        push = Push(self.daemon.address, stream=f"s{self.streams}")
        push.welcome()
        return push

    def rejected(self, block, reason, *words):
        """The block's one sample is refused; the call goes on and takes a good one."""
        push = self.push()
        push.block(**block)
        push.block(**image())
        push.wait_durable(2)
        push.close()
        self.assertEqual([(r.seq, r.reason) for r in push.rejects], [(0, reason)], push.rejects)
        for word in words:
            self.assertIn(word, push.rejects[0].detail)

    def ends(self, block, reason, *words, code=grpc.StatusCode.INVALID_ARGUMENT, before=()):
        push = self.push()
        for good in before:
            push.block(**good)
        push.block(**block)
        error = push.fails()
        self.assertEqual(error.code(), code)
        detail = error_detail(error)
        self.assertEqual(detail.reason, reason)
        for word in words:
            self.assertIn(word, detail.text)

    # ---- what loaders and trainers have got wrong with media ----

    def test_placeholders_and_features_that_do_not_match(self):
        self.rejected(image(patches=[12]), "SPAN_GRID", "spans.patches of span 0 is 12", "16 cells")
        self.rejected(image(grid_h=[8], patches=[32]), "SPAN_GRID", "is 32", "spans.merge is 16")
        block = image()
        block["tensors"][0].counts[:] = [15]
        block["labels_bytes"] = block["labels_bytes"][24:]
        self.rejected(block, "BAD_RAGGED", "tensor 'pixel_values' is 15", "call for 16")

    def test_truncation_that_cut_placeholders_away(self):
        block = image()
        block["samples"] = [block["samples"][0][:5]]
        self.rejected(block, "BAD_SPAN", "ends at token 7", "the sample has 5")

    def test_m_rope_without_a_grid(self):
        self.rejected(image(grid_t=[0], grid_h=[0], grid_w=[0]), "SPAN_GRID", "spans.grid_t", "mrope")
        self.rejected(image(merge=0, grid_h=[2], grid_w=[4], patches=[8]), "SPAN_GRID", "4 tokens", "gives 8")

    def test_stray_placeholders(self):
        block = image()
        block["samples"][0][0] = PAD
        self.rejected(block, "BAD_SPAN", f"token 0 is the placeholder {PAD}", "outside every span")
        block = image()
        block["samples"][0][4] = 7
        self.rejected(block, "BAD_SPAN", "token 4 in span 0 is 7", "media_tokens")

    def test_spans_that_overlap_or_fall(self):
        block = image(counts=[2], view=[0, 0], offsets=[3, 5], lengths=[4, 4], patches=[16, 16], grid_t=[1, 1], grid_h=[4, 4],
                      grid_w=[4, 4])
        self.rejected(block, "BAD_SPAN", "spans.offsets of span 1 is 5", "ends at 7")
        self.rejected(image(view=[3]), "BAD_SPAN", "spans.view of span 0 is 3", "1 names")

    def test_more_patches_than_a_pack_holds(self):
        self.rejected(image(h=4, w=5), "TOO_LARGE", "80 patches", "64 (max_patches)")

    def test_a_boolean_that_is_none(self):
        block = image()
        block["tensors"].append(pb.TensorSpec(name="done", dtype=pb.DTYPE_BOOL, axis=pb.AXIS_SAMPLE, dims=[2]))
        block["labels_bytes"] += b"\x01\x02"
        self.rejected(block, "BAD_VALUE", "element 1 of BOOL tensor 'done' is 2", "0 or 1")

    # ---- what ends the call ----

    def test_tables_that_contradict_themselves(self):
        def spec(**fields):
            block = image()
            block["tensors"].append(pb.TensorSpec(**({"name": "x", "dtype": pb.DTYPE_UINT8, "axis": pb.AXIS_SAMPLE} | fields)))
            block["labels_bytes"] += b"\0" * 8
            return block

        self.ends(spec(name="labels"), "RESERVED_NAME", "'labels'")
        for name in ("vision_cu_seqlens", "action_loss_weight", "jpeg_sample_index", "jpeg_cu_seqlens", "__metadata__"):
            self.ends(spec(name=name), "RESERVED_NAME", name)
        self.ends(spec(name="a b"), "BAD_NAME", "'a b'")
        self.ends(spec(name="state"), "BAD_TENSOR", "'state'", "twice")
        self.ends(spec(dtype=77), "BAD_TENSOR", "dtype")
        self.ends(spec(dims=[0]), "BAD_TENSOR", "dims")
        self.ends(spec(counts=[1]), "BAD_TENSOR", "counts")
        self.ends(spec(unit=pb.RAGGED_SPAN), "BAD_TENSOR", "unit")
        self.ends(spec(dims=[8], loss=pb.LossDecl(pad_mask="nowhere")), "BAD_TENSOR", "loss.pad_mask", "no tensor")
        self.ends(spec(dims=[8], loss=pb.LossDecl(pad_mask="state")), "BAD_TENSOR", "loss.pad_mask", "BOOL")
        self.ends(spec(dims=[7]), "LENGTH_MISMATCH", "head.body_bytes", "3 tensors")
        self.ends(image(counts=[2]), "COLUMN_SIZE", "head.spans.lengths has 1", "adds up to 2")
        self.ends(image(grid_w=[]), "COLUMN_SIZE", "grid")
        self.ends(image(merge=3), "BAD_RANGE", "head.spans.merge is 3", "square")
        self.ends(image(views=["no good"]), "BAD_NAME", "head.spans.views")

    def test_another_declaration_of_a_known_name(self):
        block = image()
        block["tensors"][1] = pb.TensorSpec(name="state", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_SAMPLE, dims=[2, 2])
        self.ends(block, "BAD_TENSOR", "'state'", "dims", "F32 [4], axis sample", "F32 [2,2], axis sample", before=[image()])
        block["tensors"][1] = pb.TensorSpec(name="state", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_SAMPLE, dims=[4],
                                            pad_value=struct.pack("<f", 1))
        self.ends(block, "BAD_TENSOR", "'state'", "pad_value", before=[image()])


def safetensors(path, arrays, metadata=None):
    """The format, written from its description: length, JSON, bytes."""
    names = {"int32": "I32", "int64": "I64", "float32": "F32", "uint8": "U8", "bool": "BOOL"}
    header, body = {}, b""
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        data = array.tobytes()
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    if metadata is not None:
        header["__metadata__"] = {"packd": json.dumps(metadata)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


class DirectoryTest(unittest.TestCase):
    """packctl push of a directory of samples."""

    def write(self, directory, i, h=1, **span):
        jpeg = np.arange(10 + i, dtype="uint8")
        arrays = {"tokens": np.asarray([1, 2] + [PAD] * h + [3] * (1 + i), dtype="int64"),
                  "pixel_values": np.full((4 * h, 3), i, dtype="float32"), "jpeg": jpeg,
                  "action": np.ones((2, 3), dtype="float32"), "action_is_pad": np.asarray([0, 1], dtype="bool")}
        safetensors(os.path.join(directory, f"sample-{i:03}.safetensors"), arrays, {
            "key": f"k{i}", "weight": 0.5, "merge": 4,
            "spans": [{"view": "front", "offset": 2, "length": h, "grid": [1, 2 * h, 2], **span}],
            "tensors": {"pixel_values": {"unit": "patch"}, "jpeg": {"unit": "run", "run_counts": [len(jpeg)], "views": ["front"]},
                        "action": {"loss": True, "pad_mask": "action_is_pad"}}})

    def test_directory_of_samples(self):
        with harness.Daemon([{"name": "default", "seq_len": 64, "window": 4, "positions": "mrope", "media_tokens": [PAD]}]) as daemon:
            directory = harness.scratch()
            for i in range(5):
                self.write(directory, i, h=1 + i % 2)
            self.write(directory, 5, patches=7)
            done = json.loads(daemon.packctl("--json", "push", "--allow-refused", "--source", "robot", directory).stdout)
            self.assertEqual((done["samples"], done["rejected"], done["rejects"]), (6, 1, {"SPAN_GRID": 1}))
            found = json.loads(daemon.packctl("--json", "log", "verify", os.path.join(daemon.directory, "data")).stdout)
            self.assertEqual((found["samples"], found["damaged"]), (5, 0))
            again = daemon.packctl("--json", "push", "--source", "robot", directory, check=False)
            self.assertEqual(again.returncode, 6, again.stderr)  # the one is not stored, whoever pushes again
            again = json.loads(again.stdout)
            self.assertEqual((again["already"], again["pushed"], again["rejected_before"], again["rejected_for"]), (6, 0, 1, "SPAN_GRID"))

    def test_files_that_are_no_samples(self):
        with harness.Daemon([{"name": "default", "seq_len": 64, "window": 4}]) as daemon:
            path = os.path.join(harness.scratch(), "one.safetensors")
            good = {"tokens": np.asarray([1, 2, 3], dtype="int32"), "x": np.zeros(2, dtype="float32")}
            for arrays, metadata, words in (
                    ({"x": good["x"]}, None, "no tensor 'tokens'"),
                    (good | {"labels": np.zeros(2, dtype="int32")}, None, "as long as tokens"),
                    (good, {"spams": []}, "unknown key 'spams'"),
                    (good, {"tensors": {"x": {"unit": "pixel"}}}, "unit is 'pixel'"),
                    (good, {"tensors": {"x": {"axis": "token"}}}, "one element per token")):
                safetensors(path, arrays, metadata)
                done = daemon.packctl("push", path, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stderr)


class ClaimTest(unittest.TestCase):
    """Patches that a sample states and does not push are believed as far as its tokens go, so that no few bytes make a large batch."""

    def pushes(self, feed, claims):
        """Pushes a sample of 8 tokens, a span of 2 in it, for each (patches, frames or 0, Push.block's keywords); returns the
        rejects by seq."""
        push = Push(self.daemon.address, feed=feed, stream=feed)
        push.welcome()
        for patches, frames, more in claims:
            grid = {"grid_t": [frames], "grid_h": [patches // frames], "grid_w": [1]} if frames else {}
            spans = pb.Spans(views=["front"], counts=[1], view=[0], offsets=[3], lengths=[2], patches=[patches], **grid)
            push.block([[1, 2, 3, PAD, PAD, 4, 5, 6]], spans=spans, **more)
        push.wait_durable(len(claims))
        push.close()
        return {r.seq: r for r in push.rejects}

    def test_patches_that_nobody_sends(self):
        def pixels(patches, *views):
            spec = pb.TensorSpec(name="pixels", dtype=pb.DTYPE_UINT8, axis=pb.AXIS_RAGGED, unit=pb.RAGGED_PATCH,
                                 span_views=views, counts=[patches])
            return {"tensors": [spec], "labels_bytes": b"\7" * patches}

        feeds = [{"name": "default", "seq_len": 64, "window": 1}, {"name": "capped", "seq_len": 64, "window": 1, "max_patches": 1000}]
        with harness.Daemon(feeds) as self.daemon:
            good = [(8192, 0, {}), (128, 128, {}), (300, 300, pixels(300)), (8192, 2, {})]
            bad = [(8193, 0, "8192"), (2**32 - 1, 0, "8192"), (129, 129, "128"), (20_000_000, 20_000_000, "128"), (8194, 2, "8192")]
            rejects = self.pushes("default", good + [(patches, frames, {}) for patches, frames, _ in bad])
            self.assertEqual(sorted(rejects), list(range(len(good), len(good) + len(bad))), rejects)
            for (patches, frames, most), reject in zip(bad, rejects.values()):
                self.assertEqual(reject.reason, "TOO_LARGE")
                field = "spans.grid_t" if frames == patches else "spans.patches"
                for words in (f"{field} of span 0 is {patches} ", f"at most {most}:", "push the tensor, or set the feed's max_patches"):
                    self.assertIn(words, reject.detail)
            # the feed's own bound takes the place of this one
            rejects = self.pushes("capped", [(1000, 1000, {}), (1001, 1001, {})])
            self.assertEqual(list(rejects), [1])
            self.assertIn("1001 patches in spans.patches of the sample; a pack holds 1000 (max_patches)", rejects[1].detail)
            end_feed(self.daemon.address)
            batches = Fetch(self.daemon.address, open_job(self.daemon.address)).all()
            self.assertEqual(sum(len(b["image_grid_thw"]) for b in batches), len(good))
            self.assertLess(max(len(b.payload) for b in batches), 64 * 256 + 8192)

    def test_a_tensor_of_another_view_carries_nothing(self):
        with harness.Daemon([{"name": "default", "seq_len": 64, "window": 1}]) as self.daemon:
            spec = pb.TensorSpec(name="pixels", dtype=pb.DTYPE_UINT8, axis=pb.AXIS_RAGGED, unit=pb.RAGGED_PATCH,
                                 span_views=["wrist"], counts=[0])
            rejects = self.pushes("default", [(300, 300, {"tensors": [spec]})])
            self.assertEqual([r.reason for r in rejects.values()], ["TOO_LARGE"])


class DurableMediaTest(unittest.TestCase):
    def test_tensors_survive_a_restart(self):
        with harness.Daemon([{"name": "default", "seq_len": 64, "window": 4}]) as daemon:
            push = Push(daemon.address, stream="robot")
            push.welcome()
            for i in range(6):
                push.block(**image(pixel=i, views=[f"camera{i % 2}"]), pieces=1 + 3 * i)
            push.wait_durable(6)
            push.close()
            daemon.kill()
            daemon.start()
            block = image(views=["camera1"])
            block["tensors"][0].dims[:] = [3]
            block["tensors"][0].counts[:] = [16]
            block["labels_bytes"] = block["labels_bytes"][16 * 12:]
            again = Push(daemon.address, stream="robot")
            self.assertEqual(again.welcome().next_seq, 6)
            again.block(**block)
            detail = error_detail(again.fails())
            self.assertEqual(detail.reason, "BAD_TENSOR")
            self.assertIn("F32 [6], axis ragged per patch", detail.text)
            again = Push(daemon.address, stream="robot")
            again.welcome()
            again.block(**image(pixel=2), first_seq=4)  # one duplicate of two, then new ones
            again.block(**image(pixel=9), first_seq=6)
            again.wait_durable(7)
            again.close()
            stream = daemon.status()["feeds"][0]["ingest"]
            self.assertEqual(int(stream["samples"]), 7)
            self.assertEqual(int(stream["bytes"]), 7 * (10 * 4 + 16 * 24 + 16))
            found = json.loads(daemon.packctl("--json", "log", "verify", os.path.join(daemon.directory, "data")).stdout)
            self.assertEqual(found["damaged"], 0)
            self.assertEqual(found["samples"], 7)
            self.assertEqual(found["sample_bytes"], 7 * (10 * 4 + 16 * 24 + 16))
            stat = json.loads(daemon.packctl("--json", "log", "stat", os.path.join(daemon.directory, "data")).stdout)
            self.assertEqual(stat["tables"]["views"]["entries"], 3)
            self.assertEqual(stat["tables"]["tensors"]["entries"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
