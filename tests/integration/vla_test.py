"""Robot samples over the wire: images, action chunks and pruning, audited by code of its own.

Two feeds get the same samples, one of them prunes a camera. Every batch of both is taken apart with NumPy and compared with what
was pushed; positions and vision boundaries follow the published definitions of Qwen2-VL and Qwen2.5-VL.
"""

import json
import math
import os
import sys
import unittest

import grpc
import numpy as np

import harness
import peer
from peer import pb

VIEWS = ["base", "left_wrist", "right_wrist"]
MERGE = 4
WINDOW = 2
CHUNK = 5
SEED = 20261130


def vla_feed(name, **more):
    return {"name": name, "seq_len": 120, "window": 16, "positions": "mrope", "vision_window": WINDOW, "max_patches": 300,
            "media_tokens": [9], **more}


class Sample:
    """One sample and everything that was pushed of it."""

    def __init__(self, rng, number):
        self.number = number
        self.spans = []  # (view, first token, grid)
        tokens = list(rng.integers(10, 1000, rng.integers(1, 9)))
        for view in range(3):
            grid = (1 if rng.random() < 0.7 else 3, 2 * int(rng.integers(1, 4)), 2 * int(rng.integers(1, 4)))
            self.spans.append((view, len(tokens), grid))
            tokens += [9] * (math.prod(grid) // MERGE)
            tokens += list(rng.integers(10, 1000, rng.integers(0, 4)))
        self.tokens = np.array(tokens, np.int32)
        patches = sum(math.prod(grid) for _, _, grid in self.spans)
        self.pixels = rng.random((patches, 3)).astype(np.float32)
        self.jpeg = [rng.integers(0, 256, rng.integers(0, 30)).astype(np.uint8) for _ in self.spans]
        self.state = rng.random(4).astype(np.float32)
        self.action = rng.random((CHUNK, 2)).astype(np.float32)
        self.is_pad = np.arange(CHUNK) >= rng.integers(1, CHUNK + 1)
        self.reward = rng.random(len(tokens)).astype(np.float32)
        self.weight = float(np.float32(rng.choice([1.0, 0.5, 2.0])))

    def kept(self, dropped):
        """Token numbers, spans (view, first token there, grid, first patch, number) left without the dropped views."""
        keep = np.ones(len(self.tokens), bool)
        for view, first, grid in self.spans:
            if VIEWS[view] in dropped:
                keep[first:first + math.prod(grid) // MERGE] = False
        index = np.flatnonzero(keep)
        spans, patch = [], 0
        for i, (view, first, grid) in enumerate(self.spans):
            if VIEWS[view] not in dropped:
                spans.append((view, int(np.searchsorted(index, first)), grid, patch, i))
            patch += math.prod(grid)
        return index, spans


def tensors(samples):
    """The tensor table and its bytes for a block."""
    table = [
        pb.TensorSpec(name="pixel_values", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_RAGGED, unit=pb.RAGGED_PATCH, dims=[3],
                      counts=[len(s.pixels) for s in samples]),
        pb.TensorSpec(name="jpeg", dtype=pb.DTYPE_UINT8, axis=pb.AXIS_RAGGED, unit=pb.RAGGED_RUN,
                      counts=[len(j) for s in samples for j in s.jpeg]),
        pb.TensorSpec(name="state", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_SAMPLE, dims=[4]),
        pb.TensorSpec(name="action", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_SAMPLE, dims=[CHUNK, 2],
                      loss=pb.LossDecl(pad_mask="action_is_pad")),
        pb.TensorSpec(name="action_is_pad", dtype=pb.DTYPE_BOOL, axis=pb.AXIS_SAMPLE, dims=[CHUNK]),
        pb.TensorSpec(name="reward", dtype=pb.DTYPE_FLOAT32, axis=pb.AXIS_TOKEN, alignment=pb.ALIGN_INPUT,
                      pad_value=np.float32(-1).tobytes()),
    ]
    columns = [[s.pixels for s in samples], [j for s in samples for j in s.jpeg], [s.state for s in samples],
               [s.action for s in samples], [s.is_pad for s in samples], [s.reward for s in samples]]
    return table, b"".join(part.tobytes() for column in columns for part in column)


def spans_of(samples):
    flat = [span for s in samples for span in s.spans]
    return pb.Spans(views=VIEWS, counts=[len(s.spans) for s in samples], view=[v for v, _, _ in flat],
                    offsets=[first for _, first, _ in flat], lengths=[math.prod(g) // MERGE for _, _, g in flat],
                    patches=[math.prod(g) for _, _, g in flat], grid_t=[g[0] for _, _, g in flat],
                    grid_h=[g[1] for _, _, g in flat], grid_w=[g[2] for _, _, g in flat],
                    t_scale=[1.5] * len(flat), merge=MERGE)


def push(address, feed, samples, block=7):
    call = peer.Push(address, feed=feed, stream=f"robot-{feed}", source="libero")
    call.welcome()
    for at in range(0, len(samples), block):
        part = samples[at:at + block]
        table, body = tensors(part)
        call.block([s.tokens for s in part], labels_bytes=body, spans=spans_of(part), tensors=table,
                   weights=[s.weight for s in part], pieces=3)
    call.wait_durable(len(samples))
    assert not call.rejects, call.rejects
    call.close()


def mrope(length, spans):
    """Positions [3, length] as transformers' get_rope_index builds them: lists joined, each at the largest before + 1."""
    parts, at = [], 0
    def start():
        return int(parts[-1].max()) + 1 if parts else 0
    for _, first, (t, h, w), _, _ in spans:
        if first > at:
            parts.append(np.tile(np.arange(first - at) + start(), (3, 1)))
        h, w = h // 2, w // 2
        grid = np.stack([np.repeat(np.floor(np.arange(t) * 1.5).astype(int), h * w),
                         np.tile(np.repeat(np.arange(h), w), t), np.tile(np.arange(w), t * h)])
        parts.append(grid + start())
        at = first + t * h * w
    if length > at:
        parts.append(np.tile(np.arange(length - at) + start(), (3, 1)))
    return np.concatenate(parts, axis=1)


def windows(grids):
    """window_index and cu_window_seqlens as Qwen2.5-VL's vision tower makes them, by padding and reshaping."""
    index, cu, first = [], [0], 0
    for t, h, w in grids:
        lh, lw = h // 2, w // 2
        pad_h, pad_w = WINDOW - lh % WINDOW, WINDOW - lw % WINDOW
        padded = np.pad(np.arange(t * lh * lw).reshape(t, lh, lw), ((0, 0), (0, pad_h), (0, pad_w)), constant_values=-100)
        nh, nw = (lh + pad_h) // WINDOW, (lw + pad_w) // WINDOW
        padded = padded.reshape(t, nh, WINDOW, nw, WINDOW).transpose(0, 1, 3, 2, 4).reshape(t * nh * nw, -1)
        index += [first + i for i in padded.reshape(-1) if i != -100]
        for count in (padded != -100).sum(1):
            if count:  # the reference drops empty windows with unique_consecutive
                cu.append(cu[-1] + int(count) * MERGE)
        first += t * lh * lw
    return index, cu


def audit(case, batch, samples, dropped):
    """Takes a batch apart; the (valid steps, weight) of its action loss."""
    table, rows = batch.header.samples, batch["sample_index"]
    flat = batch["tokens"].reshape(-1)
    width = batch.header.rows * batch.header.width
    positions = batch["positions"].reshape(3, width)
    grids, pixels, jpegs, jpeg_rows, valid, weight = [], [], [], [], 0, 0.0
    for s, row in enumerate(rows):
        start, length = int(batch["cu_seqlens"][s]), int(batch["seq_lens"][s])
        if row < 0:
            slot = np.arange(batch["cu_seqlens"][s + 1] - start)
            case.assertTrue((positions[:, start:start + len(slot)] == slot).all())
            case.assertTrue((batch["reward"].reshape(-1)[start:start + len(slot)] == -1).all())
            continue
        sample = samples[table.seq[row] if len(table.seq) else 0]
        index, spans = sample.kept(dropped)
        case.assertEqual(length, len(index))
        np.testing.assert_array_equal(flat[start:start + length], sample.tokens[index])
        np.testing.assert_array_equal(positions[:, start:start + length], mrope(length, spans))
        np.testing.assert_array_equal(batch["reward"].reshape(-1)[start:start + length], sample.reward[index])
        for name in ("state", "action"):
            np.testing.assert_array_equal(batch[name][row], getattr(sample, name))
        np.testing.assert_array_equal(batch["action_is_pad"][row], sample.is_pad)
        np.testing.assert_array_equal(batch["action_loss_weight"][row], np.where(sample.is_pad, 0, np.float32(sample.weight)))
        valid += int((~sample.is_pad).sum())
        weight += sample.weight * int((~sample.is_pad).sum())
        labels = batch["labels"].reshape(-1)[start:start + length]
        media = sample.tokens[index] == 9
        case.assertTrue((labels[media] == -100).all())
        case.assertTrue((labels[1:][~media[1:]] == sample.tokens[index][1:][~media[1:]]).all())
        grids += [grid for _, _, grid, _, _ in spans]
        pixels += [sample.pixels[patch:patch + math.prod(grid)] for _, _, grid, patch, _ in spans]
        jpegs += [sample.jpeg[i] for *_, i in spans]
        jpeg_rows += [row] * len(spans)
        case.assertEqual(batch["pixel_values_cu_seqlens"][row + 1], sum(math.prod(g) for g in grids))
        pruned = table.flags[row] & pb.SAMPLE_PRUNED if len(table.flags) else 0
        case.assertEqual(bool(pruned), bool(dropped))
    np.testing.assert_array_equal(batch["pixel_values"], np.concatenate(pixels or [np.zeros((0, 3), np.float32)]))
    np.testing.assert_array_equal(batch["image_grid_thw"], np.array(grids).reshape(-1, 3))
    frames = [h * w for t, h, w in grids for _ in range(t)]
    np.testing.assert_array_equal(batch["vision_cu_seqlens"], np.cumsum([0] + frames))
    index, cu = windows(grids)
    np.testing.assert_array_equal(batch["vision_window_index"], index)
    np.testing.assert_array_equal(batch["vision_window_cu_seqlens"], cu)
    np.testing.assert_array_equal(batch["jpeg"], np.concatenate(jpegs or [np.zeros(0, np.uint8)]))
    np.testing.assert_array_equal(batch["jpeg_cu_seqlens"], np.cumsum([0] + [len(j) for j in jpegs]))
    np.testing.assert_array_equal(batch["jpeg_sample_index"], jpeg_rows)
    case.assertEqual(batch.header.batch.patches, sum(frames))
    losses = {loss.name: loss for loss in batch.header.batch.loss}
    case.assertEqual((losses["action"].count, losses["action"].weight), (valid, weight))
    return valid, weight


class Vla(unittest.TestCase):
    def setUp(self):
        print(f"seed {SEED}")
        rng = np.random.default_rng(SEED)
        self.samples = [Sample(rng, i) for i in range(60)]

    def fetch_all(self, packd, feed):
        opened = peer.open_job(packd.address, feed=feed, dp_size=2, rows=2)
        batches = {}
        for rank in range(2):
            call = peer.Fetch(packd.address, opened, feed=feed, dp_rank=rank)
            for batch in call.all():
                batches[batch.header.step, rank] = batch
            call.close()
        return batches

    def audit_feed(self, batches, dropped):
        steps = {}
        for (step, _), batch in batches.items():
            valid, weight = audit(self, batch, self.samples, dropped)
            before = steps.get(step, (0, 0.0))
            steps[step] = before[0] + valid, before[1] + weight
        for (step, _), batch in batches.items():
            loss = {total.name: total for total in batch.header.step_totals.loss}["action"]
            self.assertEqual(loss.count, steps[step][0])
            self.assertAlmostEqual(loss.weight, steps[step][1])
        seen = sorted(row for b in batches.values() for row in (list(b.header.samples.seq) or [0] * b.header.n_real_segments))
        self.assertEqual(seen, list(range(len(self.samples))))

    def test_whole_and_pruned(self):
        feeds = [vla_feed("whole"), vla_feed("pruned", drop_views={"libero": ["right_wrist", "tpyo"]})]
        with harness.Daemon(feeds=feeds) as packd:
            for feed in ("whole", "pruned"):
                push(packd.address, feed, self.samples)
                peer.end_feed(packd.address, feed)
            whole = self.fetch_all(packd, "whole")
            pruned = self.fetch_all(packd, "pruned")
            self.audit_feed(whole, [])
            self.audit_feed(pruned, ["right_wrist"])
            status = peer.admin(packd.address, "Status", pb.StatusRequest())
            before = packd.packctl("fetch", "--feed", "pruned", "--job", "files", "--dp-size", 1, "--rank", 0,
                                   "--out", packd.directory)
            self.assertEqual(before.returncode, 0)
            packd.kill()
            packd.start()
            again = self.fetch_all(packd, "pruned")
        self.assertEqual({key: b.header_bytes for key, b in again.items()}, {key: b.header_bytes for key, b in pruned.items()})
        self.check_status({feed.name: feed for feed in status.feeds})

    def check_status(self, feeds):
        self.assertFalse(feeds["whole"].HasField("pruning"))
        pruning = feeds["pruned"].pruning
        lengths = [(len(s.tokens), len(s.kept(["right_wrist"])[0])) for s in self.samples]
        saved = 1 - sum(b * b for _, b in lengths) / sum(a * a for a, _ in lengths)
        self.assertEqual(pruning.samples, len(self.samples))
        self.assertEqual(pruning.tokens, sum(a - b for a, b in lengths))
        self.assertLessEqual(abs(pruning.attention_saved_ppm - saved * 1e6), 1)
        views = {view.name: view for view in pruning.views}
        self.assertEqual(sorted(views), ["right_wrist", "tpyo"])
        self.assertTrue(views["right_wrist"].seen and views["tpyo"].dropped)
        self.assertFalse(views["tpyo"].seen)
        self.assertEqual(views["right_wrist"].spans, len(self.samples))

    def test_same_samples_whole_and_pruned(self):
        """Without packing, pack k is sample k whatever is pruned: two feeds have the same samples in every step."""
        more = {"strategy": "none", "width": "batch", "width_bound": 110}
        feeds = [vla_feed("whole", **more), vla_feed("pruned", drop_views={"libero": ["right_wrist"]}, keep_frames={"libero": 2},
                                                     **more)]
        with harness.Daemon(feeds=feeds) as packd:
            for feed in ("whole", "pruned"):
                push(packd.address, feed, self.samples)
                peer.end_feed(packd.address, feed)
            whole, pruned = (self.fetch_all(packd, feed) for feed in ("whole", "pruned"))
            served = {feed.name: feed.served for feed in peer.admin(packd.address, "Status", pb.StatusRequest()).feeds}
            metrics = packd.metrics()
        self.assertEqual({key: list(b.header.samples.seq) for key, b in whole.items()},
                         {key: list(b.header.samples.seq) for key, b in pruned.items()})
        for name, batches in (("whole", whole), ("pruned", pruned)):
            saved = 0
            for batch in batches.values():
                h = batch.header
                self.assertEqual(h.width_bound, 110)
                self.assertEqual(h.saved_positions, h.rows * max(0, 110 - h.width))
                self.assertIn(h.attention_path, (pb.ATTENTION_VARLEN, pb.ATTENTION_FIXED))
                self.assertIn("less than 2 rows of", h.attention_why)
                saved += h.saved_positions
            self.assertEqual(served[name].saved, saved)
            self.assertEqual(metrics[f'packd_saved_positions_total{{feed="{name}"}}'], saved)
        for batch in pruned.values():  # of three frames two are left, of one it stays
            self.assertLessEqual(set(batch["image_grid_thw"][:, 0]), {1, 2})

    def test_damaged_patches_are_named(self):
        """One byte of one patch changes in the log: the sample is named, and no batch carries it."""
        with harness.Daemon(feeds=[vla_feed("default")]) as packd:
            push(packd.address, "default", self.samples)
            peer.end_feed(packd.address)
            packd.stop()
            path = os.path.join(packd.directory, "data", "data.mdb")
            with open(path, "r+b") as file:
                at = file.read().find(self.samples[0].pixels[3].tobytes())
                self.assertGreater(at, 0)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1]))
            packd.start()
            call = peer.Fetch(packd.address, peer.open_job(packd.address))
            with self.assertRaises(grpc.RpcError) as caught:
                call.all()
            detail = peer.error_detail(caught.exception)
            self.assertEqual((caught.exception.code(), detail.reason), (grpc.StatusCode.DATA_LOSS, "SAMPLE_DAMAGED"))
            self.assertIn("sample 0 of stream 'robot-default'", detail.text)
            self.assertIn("pixel_values", detail.text)
            self.assertGreaterEqual(packd.status()["validator"]["violations"], 1)
            harness.wait_for("the page's violations", lambda: json.loads(packd.http("/status.json")[1])["validator"]["violations"])
            self.assertRegex(packd.packctl("status").stdout, r"[1-9]\d* violations")

    def test_half_of_the_visual_half(self):
        """Half of the tokens are visual; without half of these 43.75 % of the attention cost is gone."""
        feed = {"name": "default", "seq_len": 128, "window": 4, "drop_views": {"libero": ["right"]}}
        with harness.Daemon(feeds=[feed]) as packd:
            call = peer.Push(packd.address, stream="r", source="libero")
            call.welcome()
            count = 20
            call.block([list(range(64))] * count,
                       spans=pb.Spans(views=["left", "right"], counts=[2] * count, view=[0, 1] * count,
                                      offsets=[0, 20] * count, lengths=[16, 16] * count))
            call.wait_durable(count)
            call.close()
            peer.end_feed(packd.address)
            opened = peer.open_job(packd.address)
            peer.Fetch(packd.address, opened).all()
            status = peer.admin(packd.address, "Status", pb.StatusRequest())
            self.assertEqual(status.feeds[0].pruning.attention_saved_ppm, 437500)
            self.assertIn("43.75 % less attention", packd.packctl("status").stdout)

    def test_rule_changes_behind_the_horizon(self):
        feed = vla_feed("default")
        with harness.Daemon(feeds=[feed]) as packd:
            push(packd.address, "default", self.samples[:30])
            opened = peer.open_job(packd.address)
            first = peer.Fetch(packd.address, opened).next()
            self.assertEqual(set(first.header.samples.flags), set())
            packd.stop()
            feed["drop_views"] = {"libero": ["base"]}
            packd.config["feeds"] = [feed]
            packd.start()
            push_more = peer.Push(packd.address, stream="robot-default", source="libero")
            self.assertEqual(push_more.welcome().next_seq, 30)
            table, body = tensors(self.samples[30:])
            push_more.block([s.tokens for s in self.samples[30:]], labels_bytes=body, spans=spans_of(self.samples[30:]),
                            tensors=table, weights=[s.weight for s in self.samples[30:]], pieces=3)
            push_more.wait_durable(60)
            push_more.close()
            peer.end_feed(packd.address)
            opened = peer.open_job(packd.address, from_start=True)
            batches = peer.Fetch(packd.address, opened).all()
            self.assertEqual(batches[0].header_bytes, first.header_bytes)
            flags = [flag for b in batches for flag in (b.header.samples.flags or [0] * b.header.n_real_segments)]
            self.assertIn(pb.SAMPLE_PRUNED, flags)
            self.assertIn(pb.SAMPLE_WHOLE, flags)


if __name__ == "__main__":
    sys.argv[1:] = [a for a in sys.argv[1:] if a]
    unittest.main()
