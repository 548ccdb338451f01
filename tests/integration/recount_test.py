"""status, explain, /metrics and the headers against a recount of the fetched files by a script that shares no code with packd."""

import json
import os
import random
import unittest

import harness
import recount


def write_jsonl(path, rng, count, longest):
    lengths = [rng.randint(1, longest) for _ in range(count)]
    with open(path, "w") as file:
        for n in lengths:
            file.write(json.dumps({"tokens": [rng.randrange(1, 30000) for _ in range(n)]}) + "\n")
    return lengths


class RecountTest(unittest.TestCase):
    def test_everything_agrees_with_the_files(self):
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng = random.Random(seed)
        for feed in ({}, {"seg_align": 8, "total_align": 8}, {"labels": "shifted", "loss_weight": "sample"},
                     {"over_length": "split"}, {"strategy": "sequential", "width": "batch", "total_align": 16}):
            longest = 700 if "over_length" in feed else 256
            with self.subTest(feed), harness.Daemon(feeds=[{"name": "default", "seq_len": 256, "window": 128, **feed}]) as packd:
                lengths = []
                for name in ("a", "b"):
                    path = os.path.join(packd.directory, name + ".jsonl")
                    lengths += write_jsonl(path, rng, 400, longest)
                    packd.packctl("push", "--stream", name, "--end", path)
                packd.packctl("end-feed")
                out = os.path.join(packd.directory, "out")
                ranks = [packd.start_packctl("--json", "fetch", "--job", "train", "--dp-size", 3, "--rank", r, "--rows", 2, "--accum", 2,
                                             "--world", "w", "--out", out) for r in range(3)]
                for process in ranks:
                    stdout, stderr = process.communicate(timeout=harness.DEADLINE_S)
                    self.assertEqual(process.returncode, 0, stderr)
                counted = recount.recount([out])
                self.assertEqual(counted["samples"], len(lengths))
                self.assertEqual({s: v["samples"] for s, v in counted["streams"].items()}, {"a": 400, "b": 400})
                if "over_length" not in feed:
                    self.assertEqual(counted["tokens"], sum(lengths))
                self.compare_status(packd, counted)
                self.compare_metrics(packd, counted)
                self.compare_explain(packd, counted)

    def compare_status(self, packd, counted):
        status = packd.status()
        feed = status["feeds"][0]
        job = feed["jobs"][0]
        for name, key in (("real", "tokens"), ("tail", "tail_padding"), ("gap", "gap"), ("row_padding", "row_padding")):
            self.assertEqual(int(feed["served"].get(name, 0)), counted[key], name)
            self.assertEqual(int(job["served"].get(name, 0)), counted[key], "of the job: " + name)
        self.assertEqual(int(feed["planned_packs"]), counted["packs"])
        self.assertEqual(int(feed["ingest"]["samples"]), counted["samples"])
        last = counted["steps"] - 1
        for field in ("planned_step", "delivered_step", "end_step"):
            self.assertEqual(int(job[field]), last, field)
        self.assertEqual(int(job.get("lag_steps", 0)), 0)
        self.assertEqual(int(job["batches_served"]), counted["batches"])
        # tokens, positions, segment_ids, labels and loss_weight take 20 bytes a position; offsets and padding come on top.
        positions = sum(int(job["served"].get(kind, 0)) for kind in ("real", "tail", "gap", "row_padding"))
        self.assertGreater(int(job["bytes_served"]), 20 * positions)
        self.assertLess(int(job["bytes_served"]), 40 * positions)
        self.assertEqual([int(r.get("dp_rank", 0)) for r in job["ranks"]], [0, 1, 2])
        for rank in job["ranks"]:
            self.assertEqual(int(rank["delivered_step"]), last)
        self.assertEqual(int(feed["streams_ended"]), 2)
        self.assertGreater(int(feed["log_bytes"]), int(feed["ingest"]["bytes"]))
        # At least a record for each stream, block, end of stream, the feed's end and the job.
        self.assertGreaterEqual(int(status["log"]["records"]), 2 + int(feed["ingest"]["blocks"]) + 2 + 2)
        anonymous = int(status["memory"]["anonymous_bytes"])
        self.assertLess(abs(anonymous - packd.resident_bytes()), 32 << 20)
        validator = status["validator"]
        self.assertTrue(validator["self_test_passed"])
        self.assertIn(validator["backend"], ("cpu", "cuda"))
        self.assertGreaterEqual(int(validator["structural"]), counted["batches"])

    def compare_metrics(self, packd, counted):
        metrics = packd.metrics()
        kinds = {"real": "tokens", "tail": "tail_padding", "gap": "gap", "row_padding": "row_padding"}
        for kind, key in kinds.items():
            found = [v for k, v in metrics.items() if k.startswith("packd_pack_tokens_total") and f'kind="{kind}"' in k]
            self.assertEqual(sum(found), counted[key], kind)
        self.assertEqual(metrics['packd_ingest_samples_total{feed="default"}'], counted["samples"])

    def compare_explain(self, packd, counted):
        seen = set()
        tokens = 0
        for step in range(counted["steps"]):
            done = packd.packctl("--json", "explain", "--job", "train", "--step", step)
            for pack in json.loads(done.stdout)["packs"]:
                tokens += int(pack.get("tokens", 0))
                table = pack.get("samples") or {}
                n = len(table.get("length", []))
                columns = [table.get(c) or [0] * n for c in ("stream", "seq", "part", "epoch")]
                seen |= {(table["streams"][s], int(q), int(p), int(e)) for s, q, p, e in zip(*columns)}
        self.assertEqual(tokens, counted["tokens"])
        self.assertEqual(len(seen), counted["segments"])


if __name__ == "__main__":
    unittest.main()
