"""Rolling restarts of the daemon under eight fetching ranks and four producers: nothing lost, nothing repeated, no rank sees an error."""

import glob
import json
import os
import re
import signal
import subprocess
import unittest

import harness
import recount

PRODUCERS, RANKS, RESTARTS = 4, 8, int(os.environ.get("PACKD_FULL") and 20 or 3)
SAMPLES = 3000
FEED = {"name": "default", "seq_len": 512, "window": 64, "stream_count": PRODUCERS}


def lines(producer):
    """JSON lines of one producer; lengths from 1 to 400, every sample with a key of its own."""
    return "".join(json.dumps({"tokens": [producer * 1000 + i % 997 + 1] * ((i * 37 + producer) % 400 + 1), "key": f"p{producer}-{i}"}) + "\n"
                   for i in range(SAMPLES))


class RollingTest(unittest.TestCase):
    def setUp(self):
        self.directory = harness.scratch()
        self.socket = os.path.join(self.directory, "packd.sock")
        self.out = os.path.join(self.directory, "batches")

    def daemon(self):
        # A Unix socket keeps its address over restarts; TCP ports are free ones each time.
        return harness.Daemon(feeds=[FEED], directory=os.path.join(self.directory), extra={"drain": "1s"}, arguments=["--listen", "unix:" + self.socket])

    def start_packctl(self, *arguments, **options):
        command = [harness.PACKCTL, "--server", "unix:" + self.socket, "-q", "--timeout", "120s", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def clients(self):
        """Producers read from slow pipes, so that they are at work through all restarts."""
        producers = []
        for p in range(PRODUCERS):
            path = os.path.join(self.directory, f"p{p}.jsonl")
            with open(path, "w") as file:
                file.write(lines(p))
            producers.append(self.start_packctl("push", "--stream", f"s{p}", "--end", path))
        ranks = [self.start_packctl("fetch", "--job", "train", "--world", "w", "--dp-size", str(RANKS), "--rank", str(r),
                                    "--out", self.out, *(["--json"] if r == 0 else [])) for r in range(RANKS)]
        return producers, ranks

    def fetched(self):
        return len(glob.glob(os.path.join(self.out, "*.safetensors")))

    def commit(self):
        """What every rank has, as a checkpoint of the whole world would."""
        highest = {}
        for path in glob.glob(os.path.join(self.out, "*.safetensors")):
            step, rank = (int(n) for n in re.search(r"step-(\d+)-micro-\d+-rank-(\d+)", path).groups())
            highest[rank] = max(step, highest.get(rank, 0))
        if len(highest) == RANKS and min(highest.values()) > 0:
            process = self.start_packctl("commit", "--job", "train", "--step", str(min(highest.values()) - 1))
            _, stderr = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, stderr)

    def test_restarts(self):
        packd = self.daemon().start()
        producers, ranks = self.clients()
        for number in range(RESTARTS):
            seen = self.fetched()
            harness.wait_for("ranks get on", lambda: self.fetched() > seen or all(r.poll() is not None for r in ranks))
            if number % 2:
                packd.kill()
            else:
                packd.stop(signal.SIGTERM)
            packd = self.daemon().start()
            self.commit()
        for process in producers + ranks:
            _, stderr = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, f"{process.args}:\n{stderr}\n{packd.log()}")
        counted = recount.recount([self.out])  # raises where a sample was served twice, or ranks end at different steps
        self.assertEqual(counted["samples"], PRODUCERS * SAMPLES)
        packd.stop()


if __name__ == "__main__":
    unittest.main()
