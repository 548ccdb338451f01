"""The examples against a real daemon: a run that is killed and resumed in other worlds, padded against packed, and NumPy or JAX.

The data are questions of GSM8K as bytes, from ../shared/data beside the checkout; where that is not there, text of the same lengths is
made up, and the log says so.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import harness

EXAMPLES = os.path.join(harness.TOP, "client", "python", "examples")
DEADLINE_S = 240
FULL = bool(os.environ.get("PACKD_FULL"))
SHARED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "..", "shared", "data", "gsm8k_train.jsonl")


def questions(count):
    """JSON lines of {"text": ...}."""
    if os.path.exists(SHARED):
        with open(SHARED) as file:
            texts = [json.loads(line)["question"] for _, line in zip(range(count), file)]
    else:
        print("NO GSM8K: ../shared/data/gsm8k_train.jsonl is not there, so made-up text is used instead", flush=True)
        rng = random.Random(5)
        texts = [" ".join(rng.choice(("two", "apples", "and", "how", "many", "are", "left", "sold"))
                          for _ in range(max(12, int(rng.gauss(45, 18))))) for _ in range(count)]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def start(script, *arguments, environment=None):
    return subprocess.Popen([sys.executable, "-B", os.path.join(EXAMPLES, script), *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})


def finish(case, process, deadline_s=DEADLINE_S):
    """Lines of JSON that it printed; it must have ended well."""
    out, err = process.communicate(timeout=deadline_s)
    case.assertEqual(process.returncode, 0, err)
    return [json.loads(line) for line in out.splitlines()]


class World:
    """Processes of train_ddp.py that form one launch."""

    count = 0

    def __init__(self, server, directory, size, rows, checkpoint, *more):
        World.count += 1
        meet = f"file://{directory}/rendezvous-{World.count}"
        self.processes = [start("train_ddp.py", "--server", server, "--rows", rows, "--step-packs", 8, "--seq-len", 256, "--width", 16,
                                 "--layers", 1, "--rendezvous", meet,
                                "--checkpoint", checkpoint, *more, environment={"RANK": str(rank), "WORLD_SIZE": str(size)})
                          for rank in range(size)]

    def kill_behind(self, step):
        """Reads every rank's lines to that step, then kills all; the lines."""
        late = threading.Timer(DEADLINE_S, self.kill)  # reading then meets the end
        late.start()
        lines = []
        for process in self.processes:
            for line in process.stdout:
                lines.append(json.loads(line))
                if lines[-1]["step"] >= step:
                    break
        late.cancel()
        self.kill()
        errors = [process.communicate(timeout=60)[1] for process in self.processes]
        assert sum(line["step"] == step for line in lines) == len(self.processes), errors
        return lines

    def kill(self):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)

    def finish(self, case):
        return [line for process in self.processes for line in finish(case, process)]


def by_step(lines):
    """{step: (set of samples, denominator, loss)}, of steps that all ranks told of; ranks must agree."""
    steps = {}
    for line in lines:
        samples, same = steps.setdefault(line["step"], (set(), set()))
        before = len(samples)
        samples |= {tuple(sample) for sample in line["samples"]}
        assert len(samples) == before + len(line["samples"]), "a sample twice in one step"
        same.add((line["denominator"], line["loss"]))
    assert all(len(same) == 1 for _, same in steps.values()), "ranks disagree"
    return {step: (samples, *same.pop()) for step, (samples, same) in steps.items()}


class TrainingTest(unittest.TestCase):
    def test_killed_and_resumed_in_other_worlds(self):
        count = 300 if FULL else 60
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 256, "window": 64, "over_length": "keep_head"}]) as packd, \
                tempfile.TemporaryDirectory() as directory:
            packd.packctl("push", "--stream", "gsm8k", "--end-feed", "-", stdin=questions(count))
            saved, again = os.path.join(directory, "saved.pt"), os.path.join(directory, "again.pt")

            first = World(packd.address, directory, 2, 2, saved).kill_behind(2)
            with open(saved, "rb") as file:
                checkpoint = file.read()
            whole = by_step(first)
            self.assertEqual(packd.status()["feeds"][0]["jobs"][0]["committed_step"], 1)

            worlds = [(2, 2), (1, 2), (4, 1)] if FULL else [(2, 2), (1, 2)]
            runs = []
            for size, rows in worlds:
                with open(again, "wb") as file:
                    file.write(checkpoint)
                runs.append(by_step(World(packd.address, directory, size, rows, again, "--every", 100).finish(self)))
            same = runs[0]
            self.assertEqual(min(same), 2)
            self.assertGreater(len(same), 1)
            self.assertEqual(whole[2], same[2], "the same bits as before the kill")
            for other in runs[1:]:
                self.assertEqual(list(same), list(other))
                for step in same:
                    self.assertEqual(same[step][:2], other[step][:2], "samples and denominator")
                    self.assertAlmostEqual(same[step][2], other[step][2], delta=1e-4 * same[step][2])
            seen = [sample for steps in (whole, same) for step, (samples, _, _) in steps.items() if steps is same or step < 2
                    for sample in samples]
            self.assertEqual(len(seen), len(set(seen)))
            self.assertEqual(len(seen), count, "every sample once")
            losses = [loss for _, (_, _, loss) in sorted(same.items())]
            self.assertLess(losses[-1], whole[0][2], "it learns")


class ComparisonTest(unittest.TestCase):
    def test_padded_and_packed(self):
        count = 96 if FULL else 16
        width = 32 if FULL else 16
        text = questions(count)
        feeds = [{"name": name, "seq_len": 512, "strategy": strategy, "over_length": "keep_head"}
                 for name, strategy in (("padded", "none"), ("packed", "exact"))]
        with harness.Daemon(feeds=feeds) as packd, tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "questions.jsonl")
            with open(path, "w") as file:
                file.write(text)
            for feed in ("padded", "packed"):
                packd.packctl("push", "--feed", feed, "--stream", feed, "--end-feed", path)
            plan = json.loads(packd.packctl("--json", "plan", "--seq-len", 512, "--alpha", 6 * width + 128, "--beta", 1, "--over-length",
                                            "keep_head", path).stdout)
            result = finish(self, start("compare_padded.py", "--server", packd.address, "--width", width, "--predicted",
                                        plan["speedup"]))[0]
        print(f"padded against packed: {result}", flush=True)
        self.assertEqual(result["alpha"], 6 * width + 128, "the cost that the plan was given")
        self.assertEqual(result["samples"], count)
        self.assertLess(result["largest_relative_difference"], 1e-5)
        self.assertEqual(result["padded_rows"], count)
        # Within 20 % where the machine is quiet; processor time of small matrices moves on a busy one.
        self.assertLess(abs(result["measured_speedup"] / plan["speedup"] - 1), 0.2 if FULL else 0.5)


class ArraysTest(unittest.TestCase):
    def run_backend(self, backend):
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 512, "labels": "shifted", "over_length": "keep_head"}]) as packd:
            packd.packctl("push", "--stream", "gsm8k", "--end-feed", "-", stdin=questions(60))
            lines = finish(self, start("train_arrays.py", "--server", packd.address, "--rows", 4, "--backend", backend))
        self.assertGreater(len(lines), 3)
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertAlmostEqual(lines[0]["loss"], 5.545, delta=0.01, msg="log 256")
        return lines

    def test_numpy(self):
        self.run_backend("numpy")

    def test_jax(self):
        if subprocess.run([sys.executable, "-c", "import jax"], capture_output=True, timeout=60).returncode:
            self.skipTest("jax is not installed")
        for one, other in zip(self.run_backend("jax"), self.run_backend("numpy")):
            self.assertAlmostEqual(one["loss"], other["loss"], places=4)


if __name__ == "__main__":
    unittest.main()
