#!/usr/bin/env python3
"""The part of demo.sh --vla behind the build: one made-up robot set, served padded, packed, and packed without its redundant camera.

The same samples go into three feeds and come back as batches of about as many positions. Counts are the batches' own. "predicted" counts the
multiplications of the tiny two-tower model of client/python/examples over each batch's boundaries; "measured" is the CPU time of its forward and backward
pass on one thread, where torch is there. The padded feed's rows are attended to whole, as training on padded rows does; its images are not padded.
"""

import argparse
import json
import os
import statistics
import sys
import time

import demo

sys.path[:0] = [os.path.join(demo.TOP, "client", "python"), os.path.join(demo.TOP, "client", "python", "examples")]
import numpy  # noqa: E402
import packd  # noqa: E402
import robot_samples as robot  # noqa: E402

try:
    import tiny_vla
    import torch
except ImportError:
    torch = None

ALIGN, TIMES = 16, 3  # a padded row is what the longest sample needs, a packed one TIMES that
MODES = {"padded": {"strategy": "none"}, "packed": {}, "pruned": {"drop_views": {robot.SOURCE: [robot.REDUNDANT]}}}
ROWS = {"padded": 6, "packed": 2, "pruned": 2}  # as many positions a step
TITLES = {"padded": "padded", "packed": "packed", "pruned": "packed + pruned"}
WIDTH, LAYERS = 64, 2
STEPS_MAX, ROUNDS = 4, 2  # steps measured of each, and how often


class VlaDemo(demo.Demo):
    def feeds(self):
        bound = -(-max(len(sample["tokens"]) for sample in self.samples) // ALIGN) * ALIGN
        shared = {"positions": "mrope", "vision_window": 4, "media_tokens": [robot.IMAGE]}
        return [{"name": name, "seq_len": bound * (1 if name == "padded" else TIMES)} | shared | rules for name, rules in MODES.items()]

    def run(self):
        demo.tell("drawing pictures ...")
        samples = self.samples = list(robot.make(self.options.samples, self.options.seed))
        self.start_packd()
        batches = {}
        for name in MODES:
            demo.tell(f"serving {TITLES[name]} ...")
            self.push(name, samples)
            batches[name] = self.fetch(name)
        status = {feed["name"]: feed for feed in self.packctl("status")["feeds"]}
        self.stop_packd()
        result = {"samples": len(samples), "seed": self.options.seed, "cameras": list(robot.CAMERAS), "dropped": robot.REDUNDANT,
                  "tokens_longest": max(len(sample["tokens"]) for sample in samples),
                  "instruction": [f(len(s["tokens"]) - sum(span.length + 2 for span in s["spans"]) - 1 for s in samples) for f in (min, max)],
                  "attention_saved_by_pruning": int(status["pruned"]["pruning"]["attention_saved_ppm"]) / 1e6,
                  "modes": {name: counts(name, batches[name], len(samples)) for name in MODES}}
        measure(result, batches)
        relate(result["modes"])
        demo.tell("")
        return result

    def push(self, feed, samples):
        refused = []
        with packd.Producer(self.address, feed=feed, stream=f"robot-{feed}", source=robot.SOURCE, on_reject=refused.append) as producer:
            producer.push(samples)
            producer.end_feed()
        if refused:
            raise demo.Failed(f"feed {feed} refused samples: {refused[0]}")

    def fetch(self, feed):
        with packd.Job(self.address, feed=feed, job="demo", rows=ROWS[feed]) as job:
            return [batch.copy() for batch in job]


def counts(mode, batches, samples):
    """What the batches of one feed hold. Multiplications only of full steps, which are what is measured, for each of their samples."""
    total = {name: sum(batch.header["batch_totals"][name] for batch in batches) for name in ("real_tokens", "patches", "samples")}
    full = [batch for batch in batches if min(batch.header["packs"]) >= 0]
    served = sorted(seq for batch in batches for seq in batch.samples.seq.tolist())
    if not full:
        raise demo.Failed(f"feed {mode} has no full step: give more --samples")
    return {"exactly_once": served == list(range(samples)), "samples": total["samples"], "steps": len(batches), "steps_full": len(full),
            "rows": ROWS[mode], "width": batches[0].width, "tokens": total["real_tokens"], "patches": total["patches"],
            "padding": 1 - sum(batch.header["batch_totals"]["real_tokens"] for batch in full) / sum(batch.rows * batch.width for batch in full),
            "samples_per_step": sum(len(batch.samples) for batch in full) / len(full),
            "multiplications_per_sample": sum(multiplications(mode, batch) for batch in full) / sum(len(batch.samples) for batch in full)}


def pairs(cu_seqlens):
    """Of positions that attend to one another."""
    return int((numpy.diff(cu_seqlens).astype("int64") ** 2).sum())


def multiplications(mode, batch):
    """Of the model's forward pass: linear layers by position and patch, attention by pair."""
    positions, patches, vision = batch.rows * batch.width, int(batch["vision_cu_seqlens"][-1]), WIDTH // 2
    attended = positions * batch.width if mode == "padded" else pairs(batch["cu_seqlens"])
    decoder = LAYERS * (12 * WIDTH**2 * positions + 2 * WIDTH * attended) + WIDTH * robot.VOCABULARY * positions
    windows = pairs(batch["vision_cu_seqlens"]) + pairs(batch["vision_window_cu_seqlens"])
    tower = patches * (robot.PIXELS * vision + 2 * 12 * vision**2 + vision * WIDTH) + 2 * vision * windows
    return decoder + tower


def measure(result, batches):
    """Median CPU seconds of a step of each mode, taken in turns so that a busy machine slows all alike; nothing without torch."""
    result["measured"] = torch is not None
    if torch is None:
        return
    demo.tell("training steps of a tiny model, in turns ...")
    torch.set_num_threads(1)
    model = tiny_vla.TinyVla(width=WIDTH, layers=LAYERS)
    full = {name: [batch for batch in batches[name] if min(batch.header["packs"]) >= 0][:STEPS_MAX] for name in MODES}
    for name in MODES:
        step(model, name, full[name][0])  # the first is slower, whatever it holds
    seconds = {name: [] for name in MODES}
    for _ in range(ROUNDS):
        for number in range(STEPS_MAX):
            for name in MODES:
                if number < len(full[name]):
                    seconds[name].append(step(model, name, full[name][number]))
    for name in MODES:
        mode = result["modes"][name]
        mode["step_cpu_seconds"] = statistics.median(seconds[name])
        mode["cpu_seconds_per_sample"] = mode["step_cpu_seconds"] / statistics.mean(len(batch.samples) for batch in full[name])


def step(model, mode, batch):
    """CPU seconds of one forward and backward pass, which other programs on this machine change little."""
    started = time.process_time()
    inputs = packd.adapters.get("qwen2_5_vl")(batch, placeholders=(robot.IMAGE,))
    rows = (batch.rows, batch.width) if mode == "padded" else None
    logits, actions = model(inputs, tiny_vla.last_tokens(batch), torch.from_numpy(batch["state"]), rows)
    words = torch.nn.functional.cross_entropy(logits[:-1], inputs["labels"][0, 1:], ignore_index=-100)
    loss = tiny_vla.action_loss(actions, batch).sum() / batch.header["step_totals"]["loss"]["action"]["weight"] + words
    model.zero_grad()
    loss.backward()
    return time.process_time() - started


def relate(modes):
    """How many times faster than padded each is, by sample."""
    for mode in modes.values():
        mode["predicted_speedup"] = modes["padded"]["multiplications_per_sample"] / mode["multiplications_per_sample"]
        if "cpu_seconds_per_sample" in mode:
            mode["measured_speedup"] = modes["padded"]["cpu_seconds_per_sample"] / mode["cpu_seconds_per_sample"]


def table(result):
    bold, green, red, off = demo.colours()
    verdict = lambda ok: f"{green}each once{off}" if ok else f"{red}NOT each once{off}"  # noqa: E731
    lines = [
        ("samples", lambda m: f"{m['samples']:,}"), ("", lambda m: verdict(m["exactly_once"])),
        ("rows a step", lambda m: f"{m['rows']} x {m['width']:,}"), ("steps", lambda m: f"{m['steps']:,}"),
        ("tokens", lambda m: f"{m['tokens']:,}"), ("patches", lambda m: f"{m['patches']:,}"),
        ("padding, full steps", lambda m: f"{bold}{m['padding'] * 100:.1f} %{off}"), ("samples a step", lambda m: f"{m['samples_per_step']:.1f}"),
        ("predicted, by sample", lambda m: f"{m['predicted_speedup']:.2f} x"),
    ]
    if result["measured"]:
        lines += [("measured, by sample", lambda m: f"{bold}{m['measured_speedup']:.2f} x{off}"),
                  ("  a step", lambda m: f"{m['step_cpu_seconds'] * 1e3:.0f} ms"), ("  a sample", lambda m: f"{m['cpu_seconds_per_sample'] * 1e3:.1f} ms")]
    short, long = result["instruction"]
    text = [f"  Made-up robot set: {result['samples']} samples, cameras {', '.join(result['cameras'])};",
            f"  instructions of {short} to {long} tokens, samples of up to {result['tokens_longest']}. {result['dropped']} shows what left_wrist shows;",
            "  \"pruned\" drops it by drop_views.", "", f"  {'':<22}" + "".join(f"{TITLES[name]:>18}" for name in result["modes"])]
    for title, cell in lines:
        text.append(f"  {title:<22}" + "".join(right(cell(mode), 18) for mode in result["modes"].values()))
    text += ["", f"  Dropping the camera spared {result['attention_saved_by_pruning'] * 100:.1f} % of the decoder's attention cost, packd says.",
             "  predicted: multiplications of a tiny two-tower model, how many times fewer than padded."]
    text.append("  measured: CPU time of its forward and backward pass, how many times less than padded." if result["measured"] else
                "  Not measured: torch is not installed (Debian: python3-torch).")
    return "\n".join(text)


def right(text, width):
    """Right-aligned by what is seen of it."""
    seen = len(text)
    for colour in demo.colours():
        seen -= text.count(colour) * len(colour) if colour else 0
    return " " * max(0, width - seen) + text


def main():
    parser = argparse.ArgumentParser(prog="demo.sh --vla", description=__doc__)
    parser.add_argument("--vla", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--from", dest="start", default=".", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.samples < 60:
        parser.error("--samples: at least 60, for steps that are full")
    result = demo.run(VlaDemo(options))
    print(json.dumps(result) if options.json else table(result))
    sys.exit(0 if all(mode["exactly_once"] for mode in result["modes"].values()) else 1)


if __name__ == "__main__":
    main()
