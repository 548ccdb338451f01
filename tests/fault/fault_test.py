"""The nth write, sync, map or allocation fails: the process carries on, or ends with a line that says why; and the log that it leaves opens, holds
every acked sample, and verifies clean. Where n lies is drawn; with PACKD_FULL every n is tried until a run comes through without its fault.

    PACKD_TEST_SEED     repeat one run
"""

import concurrent.futures
import errno
import os
import random
import re
import unittest

import fault_support as support

POINTS = 8  # of each kind, in the short form


def run_one(kind, at, error):
    """One run with its nth call failing. Returns (fired, how it ended)."""
    with support.Scratch() as directory:
        report = os.path.join(directory, "report")
        done = support.driver("run", directory, kind=kind, at=at, errno=error, report=report)
        fired = "fired" in support.read(report)
        ended = judge_end(done, fired)
        if kind == "sync" and fired:
            assert ended == "stopped", f"a failed sync was passed over: {done.stderr}"
        support.judge(directory)
        return fired, ended


def judge_end(done, fired):
    """'went on', 'stopped' or 'not opened'; AssertionError for anything that is not said clearly."""
    if done.returncode == 0:
        return "went on"
    assert fired, f"failed without a fault: {done.returncode}\n{done.stderr}"
    if done.returncode == support.LOG_FAILED:
        assert re.search(r'ERROR log_failed path="[^"]+" what="[^"]+" reason="[^"]+"', done.stderr), done.stderr
        return "stopped"
    assert done.returncode == support.NOT_OPENED, f"ended with {done.returncode}\n{done.stderr}"
    assert re.search(r"not opened: [A-Z_]+: .+", done.stderr), done.stderr
    return "not opened"


def calls_of(kind):
    """How many calls of the kind an undisturbed run makes."""
    with support.Scratch() as directory:
        report = os.path.join(directory, "report")
        done = support.driver("run", directory, kind=kind, at=0, report=report)
        assert done.returncode == 0, done.stderr
        support.judge(directory)
        return int(re.search(r"count (\d+)", support.read(report)).group(1))


class NthFault(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if support.sanitized():
            print("SKIP: faults cannot be injected into a sanitizer build", flush=True)
            raise unittest.SkipTest("sanitizer build")

    def try_points(self, kind, error):
        count = calls_of(kind)
        self.assertGreater(count, 0)
        rng = random.Random(support.SEED)
        # groups of requests depend on timing: a run may make a few calls more or fewer than the counted one
        points = range(1, 2 * count + 100) if support.FULL else sorted({1, 2, count // 2, *(rng.randrange(1, count + 1) for _ in range(POINTS))})
        print(f"{kind} {errno.errorcode[error]}: seed {support.SEED}, {count} calls", flush=True)
        ends, failures = {}, []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for at, run in [(at, pool.submit(run_one, kind, at, error)) for at in points]:
                try:
                    fired, ended = run.result()
                except AssertionError as failure:
                    failures.append(f"{kind} {at} {errno.errorcode[error]}: {failure}")
                    continue
                if fired:
                    ends[ended] = ends.get(ended, 0) + 1
                elif support.FULL and at > count:
                    pool.shutdown(cancel_futures=True)
                    break
        self.assertEqual(failures, [], "\n".join(failures))
        print("  ", ends, flush=True)
        self.assertGreater(sum(ends.values()), 0)
        return ends

    def test_write_no_space(self):
        """A full disk is a full log: refused, undone, tried again."""
        ends = self.try_points("write", errno.ENOSPC)
        self.assertIn("went on", ends)

    def test_write(self):
        self.try_points("write", errno.EIO)

    def test_sync(self):
        self.try_points("sync", errno.EIO)

    def test_map(self):
        ends = self.try_points("mmap", errno.ENOMEM)
        self.assertEqual(set(ends), {"not opened"})

    def test_allocation(self):
        ends = self.try_points("alloc", errno.ENOMEM)
        self.assertIn("went on", ends)


if __name__ == "__main__":
    unittest.main()
