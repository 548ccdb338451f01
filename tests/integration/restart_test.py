"""Producers and ranks of packctl while the real daemon is killed and started again, over a Unix socket that keeps its address:
every sample arrives exactly once and every rank gets every batch, byte for byte the same as a later reader."""

import json
import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer  # noqa: E402
from harness import PACKCTL, Daemon, scratch, wait_for  # noqa: E402

SEED = int(os.environ.get("PACKD_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
KILLS = int(os.environ.get("PACKD_TEST_KILLS", "4"))
ENV = {key: value for key, value in os.environ.items() if not key.startswith("PACKD_")}


class RestartTest(unittest.TestCase):
    def setUp(self):
        print("seed", SEED)
        self.random = random.Random(SEED)
        self.directory = scratch()
        self.socket = "unix:" + os.path.join(self.directory, "s")
        self.daemon = Daemon([{"name": "default", "seq_len": 256, "window": 64}], directory=self.directory,
                             arguments=["--listen", self.socket])

    def start(self, *arguments, stdin=None):
        return subprocess.Popen([PACKCTL, "--server", self.socket, "--timeout", "60s", "--json", *map(str, arguments)], stdin=stdin,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)

    def restart(self):
        self.daemon.kill()
        self.daemon.start()

    def rows(self, count):
        return [{"tokens": [self.random.randrange(1, 1000) for _ in range(self.random.randrange(1, 200))], "key": str(i)}
                for i in range(count)]

    def push_file(self, *arguments, expect):
        done = self.daemon.packctl("push", *arguments, check=False)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def test_refused_samples_are_told_by_every_push(self):
        path = os.path.join(self.directory, "long.jsonl")
        with open(path, "w") as file:
            file.write("".join(json.dumps({"tokens": [1] * count}) + "\n" for count in (300, 3, 4, 301, 5)))
        with self.daemon:
            done = self.push_file("--stream", "s", path, expect=6)
            self.assertIn("3 samples stored, 2 refused; ", done.stdout)
            self.assertIn("packctl delete-stream --stream s --feed default", done.stderr)
            for restart in range(2):
                done = self.push_file("--stream", "s", "--end-feed", path, expect=6)
                self.assertIn("stream s: 3 stored, 2 refused earlier (OVER_LENGTH)", done.stdout)
                self.assertIn("feed default is not ended", done.stderr)
                self.assertIn("packctl delete-stream --stream s --feed default", done.stderr)
                if restart == 0:
                    self.restart()
            summary = json.loads(self.push_file("--json", "--stream", "s", path, expect=6).stdout)
            self.assertEqual([summary[name] for name in ("already", "pushed", "rejected", "rejected_before", "rejected_for")],
                             [5, 0, 0, 2, "OVER_LENGTH"])
            part = peer.Push(self.socket, stream="part", content_id=summary["content_id"])
            part.welcome()
            part.block([[1] * 300, [1] * 3, [1] * 4])
            part.wait_durable(3)
            part.close()
            done = self.push_file("--stream", "part", path, expect=6)
            self.assertIn("stream part: 3 samples stored (2 of them earlier), 2 refused (1 earlier); ", done.stdout)
            self.assertIn("refused: 1 samples, OVER_LENGTH", done.stdout)
            self.assertIn("refused earlier: 1 samples, OVER_LENGTH", done.stdout)
            streams = json.loads(self.daemon.packctl("--json", "status", "--streams").stdout)["feeds"][0]["streams"]
            self.assertEqual([(s["name"], int(s["rejected"]), s["rejected_for"]) for s in streams],
                             [("part", 2, "OVER_LENGTH"), ("s", 2, "OVER_LENGTH")])
            self.assertFalse(self.daemon.status()["feeds"][0].get("end_requested", False))
            done = self.push_file("--stream", "s", "--end-feed", "--allow-refused", path, expect=0)
            self.assertIn("feed default ended", done.stdout)

    def test_push_and_fetch_through_kills(self):
        with self.daemon:
            rows = self.rows(600 * (KILLS + 1))
            producer = self.start("push", "--stream", "s", "--end-feed", "-", stdin=subprocess.PIPE)
            ranks = [self.start("fetch", "--job", "train", "--dp-size", 2, "--rank", rank, "--rows", 2, "--world", "w", "--commit-every", 7)
                     for rank in range(2)]
            for i in range(KILLS + 1):
                if i > 0:
                    self.restart()
                producer.stdin.write("".join(json.dumps(row) + "\n" for row in rows[i * 600:(i + 1) * 600]))
                producer.stdin.flush()
                wait_for("samples arrive", lambda: self.accepted() > i * 600)
            out, error = producer.communicate(timeout=120)
            self.assertEqual(producer.returncode, 0, error)
            self.assertEqual(json.loads(out)["durable_seq"], len(rows))
            batches = [self.finish(rank) for rank in ranks]
            again = [self.finish(self.start("fetch", "--job", "look", "--reader", "--dp-size", 2, "--rank", rank, "--rows", 2))
                     for rank in range(2)]
            self.assertEqual(sum(batch["samples"] for rank in batches for batch in rank), len(rows))
            for rank, repeat in zip(batches, again):
                self.assertEqual([batch["step"] for batch in rank], list(range(len(rank))))
                self.assertEqual(len(rank), len(repeat))
                self.assertEqual([batch["packs"] for batch in rank], [batch["packs"] for batch in repeat])
                self.assertEqual([batch["real_tokens"] for batch in rank], [batch["real_tokens"] for batch in repeat])

    def accepted(self):
        feed = json.loads(self.daemon.packctl("--json", "status").stdout)["feeds"][0]
        return feed["ingest"]["samples"]

    def finish(self, process):
        out, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, error)
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(lines[-1]["end"], "END_OF_FEED")
        return [line for line in lines if line["type"] == "batch"]


if __name__ == "__main__":
    unittest.main()
