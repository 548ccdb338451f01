"""The whole daemon with one failing call: a write, a sync, or an allocation of packd's own, somewhere between start and end, while packctl pushes and
fetches. It carries on or ends with a line that says why; after a start without faults every sample arrives, once. gRPC ends the process by itself
when one of *its* allocations fails; those are not touched. The finer form, over log and sequencer alone, is tests/fault.

    PACKD_TEST_SEED     repeat one run
"""

import errno
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import unittest

import harness

SEED = int(os.environ.get("PACKD_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
POINTS = 30 if os.environ.get("PACKD_FULL") == "1" else 1  # of each kind
FAULT = os.path.join(harness.TOP, "tests", "fault", "libpackd_fault.so")
DRIVER = os.path.join(harness.TOP, "tests", "fault", "driver")
ENV = {key: value for key, value in os.environ.items() if not key.startswith("PACKD_")}
LOG_FAILED = 74
SAMPLES = 400


class DaemonFault(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if subprocess.run([DRIVER], capture_output=True).returncode == 77:
            print("SKIP: faults cannot be injected into a sanitizer build", flush=True)
            raise unittest.SkipTest("sanitizer build")

    def setUp(self):
        self.directory = harness.scratch()
        self.socket = "unix:" + os.path.join(self.directory, "s")

    def daemon(self, **fault):
        environment = {f"PACKD_FAULT_{key.upper()}": str(value) for key, value in fault.items()}
        if fault:
            environment |= {"LD_PRELOAD": FAULT, "PACKD_FAULT_DIR": self.directory, "PACKD_FAULT_REPORT": os.path.join(self.directory, "report")}
        return harness.Daemon([{"name": "default", "seq_len": 256, "window": 32}], directory=self.directory, environment=environment,
                              arguments=["--listen", self.socket], extra={"log": {"durability": "fsync"}})

    def report(self):
        with open(os.path.join(self.directory, "report")) as file:
            return file.read()

    def start(self, packd):
        """False where the daemon ended while it started."""
        try:
            packd.start()
        except AssertionError:
            if packd.process.poll() is None:
                raise
            return False
        return True

    def run_packctl(self, packd, *arguments):
        """Runs packctl to its end; a daemon that ends meanwhile is judged and started again without its fault. Its output."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            process = subprocess.Popen([harness.PACKCTL, "--server", self.socket, "--timeout", "30s", "--json", *map(str, arguments)],
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=error, env=ENV)
            self.addCleanup(process.kill)
            harness.wait_for(f"packctl {arguments}", lambda: self.revive(packd) or process.poll() is not None)
            out.seek(0)
            error.seek(0)
            return process.returncode, out.read(), error.read()

    def revive(self, packd):
        if packd.process.poll() is None:
            return
        self.judge_end(packd.process.returncode, packd.log())
        packd.environment = {}
        packd.start()

    def judge_end(self, code, log):
        self.assertIn("fired", self.report(), f"ended with {code} without a fault\n{log}")
        if code == LOG_FAILED:
            self.assertRegex(log, r'log_failed path="[^"]+" what="[^"]+" reason="[^"]+"')
        else:  # refused to start
            self.assertEqual(code, 1, log)
            self.assertRegex(log.splitlines()[-1], r"\S+ \S+", log)

    def succeed(self, packd, *arguments):
        """One fault may end one call, and a batch that failed is answered with its failure for a while; then it must succeed."""
        last = []

        def attempt():
            last[:] = self.run_packctl(packd, *arguments)
            if last[0] != 0:
                self.assertIn("fired", self.report(), last[2])
                self.revive(packd)
            return last[0] == 0

        harness.wait_for(f"packctl {arguments} succeeds", attempt)
        return [json.loads(line) for line in last[1].splitlines()]

    def run_one(self, rng, **fault):
        packd = self.daemon(**fault)
        self.addCleanup(lambda: packd.process and packd.process.kill())
        if not self.start(packd):
            self.revive(packd)
        rows = os.path.join(self.directory, "rows.jsonl")
        with open(rows, "w") as file:
            file.writelines(json.dumps({"tokens": [rng.randrange(1, 1000) for _ in range(rng.randrange(1, 200))]}) + "\n" for _ in range(SAMPLES))
        pushed = self.succeed(packd, "push", "--stream", "s", "--end-feed", rows)
        self.assertEqual(pushed[-1]["durable_seq"], SAMPLES)
        rank = ["--dp-size", 1, "--rank", 0, "--rows", 2]
        self.succeed(packd, "fetch", "--job", "train", *rank, "--commit-every", 20)
        again = self.succeed(packd, "fetch", "--job", "look", *rank, "--reader", "--from", 0)
        self.assertEqual(sum(line["samples"] for line in again if line["type"] == "batch"), SAMPLES)
        self.revive(packd)
        code, log = self.stop(packd)
        if code != 0:
            self.judge_end(code, log)
        verified = subprocess.run([harness.PACKCTL, "--json", "log", "verify", os.path.join(self.directory, "data")], text=True, capture_output=True)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    def stop(self, packd):
        process = packd.process
        process.terminate()
        code = process.wait(harness.DEADLINE_S)
        packd.process = None
        return code, packd.log()

    def run_points(self, kind, error):
        rng = random.Random(f"{SEED} {kind}")
        self.run_one(rng, kind=kind, at=0)
        count = int(re.search(r"count (\d+)", self.report()).group(1))
        points = sorted(rng.sample(range(1, count + 1), min(POINTS, count)))
        print(f"{kind} {errno.errorcode[error]}: seed {SEED}, {count} calls, {points}", flush=True)
        for at in points:
            shutil.rmtree(self.directory)
            os.mkdir(self.directory)
            with self.subTest(kind=kind, at=at):
                self.run_one(rng, kind=kind, at=at, errno=error)

    def test_write_no_space(self):
        self.run_points("write", errno.ENOSPC)

    def test_write(self):
        self.run_points("write", errno.EIO)

    def test_sync(self):
        self.run_points("sync", errno.EIO)

    def test_allocation(self):
        self.run_points("alloc", errno.ENOMEM)


if __name__ == "__main__":
    unittest.main()
