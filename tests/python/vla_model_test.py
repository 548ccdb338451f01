"""Packed robot batches from the daemon through a two-tower model: each sample's outputs and action loss are those it has alone.

What a sample is alone is built here from what was pushed, by loops over the published definitions. The same comparison fails for each boundary that is taken
away: the decoder's, the vision tower's, its windows', and M-RoPE's restart. Steps past an episode's end weigh nothing, whatever they hold.
"""

import math
import os
import random
import sys
import unittest

import numpy
import torch

import harness
import packd
from packd import adapters

sys.path.append(os.path.join(harness.TOP, "client", "python", "examples"))
import robot_samples as robot
import tiny_vla

torch.set_num_threads(1)
COUNT, WINDOW = 20, 2
FEED = {"seq_len": 384, "window": 16, "positions": "mrope", "vision_window": WINDOW, "media_tokens": [robot.IMAGE], "seg_align": 4, "max_patches": 1400}
DROP = {robot.SOURCE: [robot.REDUNDANT]}
TOLERANCE = 1e-9


def positions(length, spans):
    """[3, length], one token after the other."""
    rows, at, following = [], 0, 0
    for span in spans:
        while at < span.offset:
            rows.append((following,) * 3)
            at, following = at + 1, following + 1
        frames, height, width = span.grid[0], span.grid[1] // 2, span.grid[2] // 2
        rows += [(following + t, following + y, following + x) for t in range(frames) for y in range(height) for x in range(width)]
        at, following = at + span.length, max(max(row) for row in rows) + 1
    rows += [(following + i,) * 3 for i in range(length - at)]
    return numpy.array(rows).T


def windows(spans):
    """Merged tokens window by window, and where windows end, in patches."""
    index, cu, first = [], [0], 0
    for span in spans:
        height, width = span.grid[1] // 2, span.grid[2] // 2
        for top in range(0, height, WINDOW):
            for left in range(0, width, WINDOW):
                inside = [first + y * width + x for y in range(top, min(top + WINDOW, height)) for x in range(left, min(left + WINDOW, width))]
                index += inside
                cu.append(cu[-1] + 4 * len(inside))
        first += height * width
    return index, cu


def without(sample, camera):
    """The sample without one camera's tokens, span and patches."""
    tokens, pixels = sample["tokens"], sample["tensors"]["pixel_values"].values
    keep, kept_pixels, spans, gone, patch = numpy.ones(len(tokens), bool), [], [], 0, 0
    for span in sample["spans"]:
        patches = math.prod(span.grid)
        if span.view == camera:
            keep[span.offset:span.offset + span.length] = False
            gone += span.length
        else:
            spans.append(packd.Span(offset=span.offset - gone, length=span.length, view=span.view, grid=span.grid))
            kept_pixels.append(pixels[patch:patch + patches])
        patch += patches
    return sample | {"tokens": tokens[keep], "spans": spans,
                     "tensors": sample["tensors"] | {"pixel_values": packd.Tensor(numpy.concatenate(kept_pixels), axis="ragged", unit="patch")}}


def alone(model, sample):
    """(logits, actions) of one sample, no packd between."""
    tokens, spans = sample["tokens"], sample["spans"]
    index, cu_windows = windows(spans)
    inputs = {"input_ids": torch.tensor(tokens)[None].long(), "position_ids": torch.tensor(positions(len(tokens), spans))[:, None],
              "cu_seq_lens_q": torch.tensor([0, len(tokens)]), "pixel_values": torch.tensor(sample["tensors"]["pixel_values"].values),
              "image_grid_thw": torch.tensor([span.grid for span in spans]),
              "vision_cu_seqlens": torch.tensor(numpy.cumsum([0] + [math.prod(span.grid) for span in spans])),
              "window_index": torch.tensor(index), "cu_window_seqlens": torch.tensor(cu_windows)}
    logits, actions = model(inputs, torch.tensor([len(tokens) - 1]), torch.tensor(sample["tensors"]["state"].values)[None])
    return logits, actions[0]


def loss_alone(actions, sample):
    """Sum over the steps inside the episode."""
    valid = ~sample["tensors"]["action_is_pad"].values
    wanted = torch.tensor(sample["tensors"]["action"].values[valid], dtype=actions.dtype)
    return (actions[torch.tensor(valid)] - wanted).square().mean(-1).sum().item()


class Different(AssertionError):
    """A sample's outputs are not those it has alone."""


class VlaModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seed = random.randrange(1 << 30)
        print(f"seed {cls.seed}")
        cls.pushed = list(robot.make(COUNT, cls.seed))
        cls.feeds = {"whole": {}, "pruned": {"drop_views": DROP}, "padded": {"strategy": "none", "width": "batch", "width_bound": 300}}
        with harness.Daemon(feeds=[{"name": name} | FEED | more for name, more in cls.feeds.items()]) as server:
            cls.batches = {name: cls.serve(server, name) for name in cls.feeds}
        cls.model = tiny_vla.TinyVla(width=32, layers=2, dtype=torch.float64)
        pruned = [without(sample, robot.REDUNDANT) for sample in cls.pushed]
        with torch.no_grad():
            whole = [alone(cls.model, sample) for sample in cls.pushed]
            cls.single = {"whole": whole, "padded": whole, "pruned": [alone(cls.model, sample) for sample in pruned]}

    @classmethod
    def serve(cls, server, feed):
        with packd.Producer(server.address, feed=feed, stream=f"robot-{feed}", source=robot.SOURCE) as producer:
            producer.push(cls.pushed)
            producer.end_feed()
        with packd.Job(server.address, feed=feed, job="j", rows=2) as job:
            return [batch.copy() for batch in job]

    def run_model(self, batch, change=lambda inputs: None, rows=None):
        inputs = adapters.get("qwen2_5_vl")(batch, placeholders=(robot.IMAGE,))
        change(inputs)
        with torch.no_grad():
            return self.model(inputs, tiny_vla.last_tokens(batch), torch.from_numpy(batch["state"]), rows)

    def compare(self, feed, batch, logits, actions):
        """Raises Different unless every sample has its own outputs and loss; the losses, added up."""
        losses, total = tiny_vla.action_loss(actions, batch), 0.0
        for start, length, row in zip(batch["cu_seqlens"].tolist(), batch["seq_lens"].tolist(), batch["sample_index"].tolist()):
            if row < 0:
                continue
            seq = batch.samples[row].seq
            own_logits, own_actions = self.single[feed][seq]
            own_loss = loss_alone(own_actions, self.pushed[seq])
            self.assertEqual(len(own_logits), length)
            worst = max((logits[start:start + length] - own_logits).abs().max().item(), (actions[row] - own_actions).abs().max().item(),
                        abs(losses[row].item() - own_loss))
            if not worst <= TOLERANCE:
                raise Different(f"sample {seq} differs from itself alone by {worst:g}")
            total += own_loss
        return total

    def test_same_as_alone(self):
        for feed in self.feeds:
            with self.subTest(feed):
                seen = []
                for batch in self.batches[feed]:
                    total = self.compare(feed, batch, *self.run_model(batch))
                    mean = total / batch.header["step_totals"]["loss"]["action"]["weight"]
                    seqs = batch.samples.seq.tolist()
                    valid = sum(int((~self.pushed[seq]["tensors"]["action_is_pad"].values).sum()) for seq in seqs)
                    self.assertAlmostEqual(mean, total / valid, places=12)
                    seen += seqs
                self.assertEqual(sorted(seen), list(range(COUNT)))
        longest = max(len(batch.samples) for batch in self.batches["whole"])
        self.assertGreater(longest, 2, "some row holds more than one sample")
        self.assertLess(len(self.batches["pruned"]), len(self.batches["padded"]))

    def test_whole_rows(self):
        """A row that holds one sample may be attended to as a whole: causal attention does not see the padding behind."""
        for batch in self.batches["padded"]:
            self.compare("padded", batch, *self.run_model(batch, rows=(batch.rows, batch.width)))
        with self.assertRaises(Different):
            for batch in self.batches["whole"]:
                self.compare("whole", batch, *self.run_model(batch, rows=(batch.rows, batch.width)))

    def test_dynamic_padding_in_the_header(self):
        for batch in self.batches["padded"]:
            header = batch.header
            self.assertEqual((header["width_bound"], header["saved_positions"]), (300, batch.rows * (300 - batch.width)))
            self.assertRegex(header["attention_why"], rf"^{len(batch.samples)} segments of up to {batch.max_seqlen} cost .* less than 2 rows of 300$")
            self.assertEqual(header["attention_path"], "varlen", "padding up to 300 is much to spare")
        hints = {tuple(batch.header[name] for name in ("width_bound", "saved_positions", "attention_path")) for batch in self.batches["whole"]}
        self.assertEqual(hints, {(384, 0, "fixed")}, "in full rows this short attention is next to nothing")

    def test_fails_without_boundaries(self):
        def one_segment(name):
            return lambda inputs: inputs.update({name: inputs[name][[0, -1]]})

        def no_restart(inputs):
            inputs["position_ids"] = torch.arange(inputs["input_ids"].shape[1]).expand(3, 1, -1)

        def others(inputs):  # patches of another sample
            inputs["pixel_values"] = inputs["pixel_values"].roll(4, 0)

        changes = {name: one_segment(name) for name in ("cu_seq_lens_q", "vision_cu_seqlens", "cu_window_seqlens")}
        batch = max(self.batches["whole"], key=lambda batch: len(batch.samples))
        self.compare("whole", batch, *self.run_model(batch))
        for name, change in (changes | {"position_ids": no_restart, "pixel_values": others}).items():
            with self.subTest(name), self.assertRaises(Different):
                self.compare("whole", batch, *self.run_model(batch, change))

    def test_steps_past_the_end_weigh_nothing(self):
        found = 0
        for batch in self.batches["whole"]:
            _, actions = self.run_model(batch)
            before, pad = tiny_vla.action_loss(actions, batch), batch["action_is_pad"]
            found += int(pad.sum())
            numpy.testing.assert_array_equal(batch["action_loss_weight"], numpy.where(pad, 0, 1))
            actions[torch.from_numpy(pad)] += 1000
            self.assertTrue(torch.equal(tiny_vla.action_loss(actions, batch), before))
            actions[torch.from_numpy(~pad)] += 1000
            self.assertTrue((tiny_vla.action_loss(actions, batch) > before).all())
        self.assertGreater(found, 0)


if __name__ == "__main__":
    unittest.main()
