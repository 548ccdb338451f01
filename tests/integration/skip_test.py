"""Steps left out: by an operator, and by the server itself when a batch cannot be served (validate.on_violation: skip_step)."""

import glob
import json
import os
import re
import subprocess
import threading
import unittest

import grpc

import harness
import peer
from peer import pb

FAULTY = os.path.join(harness.TOP, "server", "packd_faulty")
REPLAY = os.path.join(harness.TOP, "server", "packd_replay")
FEED = {"name": "default", "seq_len": 64, "window": 8}
SAMPLES = [[1 + (i * 31 + j * 7) % 900 for j in range(8 + i * 5 % 50)] for i in range(400)]
WORLD = {"dp_size": 2, "rows": 1, "accum": 1, "world_token": "w"}


def push_all(packd, count=len(SAMPLES), end=False):
    push = peer.Push(packd.address)
    push.welcome()
    push.block(SAMPLES[:count])
    push.wait_durable(count)
    if end:
        push.end_stream()
    push.close()
    if end:
        peer.end_feed(packd.address)


def skip(packd, first, last, job="train", why="loss spike"):
    return peer.admin(packd.address, "SkipSteps", pb.SkipStepsRequest(job=job, first=first, last=last, why=why))


def bytes_of(batch):
    return batch.header_bytes, batch.payload


def job_status(packd, job="train"):
    status = peer.admin(packd.address, "Status", pb.StatusRequest())
    return next(j for j in status.feeds[0].jobs if j.name == job)


def explain(packd, step, job="train"):
    return peer.admin(packd.address, "Explain", pb.ExplainRequest(job=job, step=step))


class SkipStepsTest(unittest.TestCase):
    def fails(self, code, reason, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        detail = peer.error_detail(caught.exception)
        self.assertEqual(detail.reason, reason, detail.text)
        return detail

    def test_operator_skips(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            push_all(packd, end=True)
            look = peer.open_job(packd.address, job="look", dp_size=2, kind=pb.JOB_READER)
            whole = {b.header.step: bytes_of(b) for b in peer.Fetch(packd.address, look, job="look").all()}
            opened = peer.open_job(packd.address, **WORLD)
            fetch = peer.Fetch(packd.address, opened, credit=1)
            self.assertEqual(fetch.next().header.step, 0)
            answer = skip(packd, 2, 4)
            self.assertEqual((answer.generation, answer.next_step), (opened.generation + 1, 5))
            self.assertGreater(answer.record, 0)
            with self.assertRaises(grpc.RpcError) as caught:
                fetch.all()
            self.assertEqual(peer.error_detail(caught.exception).reason, "FENCED")
            fetch.close()

            # What is out already is out: no record, no generation.
            again = skip(packd, 3, 3)
            self.assertEqual((again.record, again.generation, again.next_step), (0, answer.generation, 5))
            # The other rank of the same world, which has seen nothing yet, and the one that is fenced: both come back.
            back = peer.open_job(packd.address, dp_rank=1, **WORLD)
            self.assertEqual(back.generation, answer.generation)
            self.assertEqual([(r.first, r.last) for r in back.skipped], [(2, 4)])
            steps = [b for b in peer.Fetch(packd.address, back, first_step=1).all()]
            self.assertEqual([b.header.step for b in steps], [1, *range(5, len(whole))])
            for batch in steps:
                self.assertEqual((batch.header.step, batch.payload), (batch.header.step, whole[batch.header.step][1]))
            # In the middle of a step that is out, and with a last step inside it.
            inside = peer.Fetch(packd.address, back, first_step=3, last_step=5)
            self.assertEqual([b.header.step for b in inside.all()], [5])
            self.assertEqual(peer.Fetch(packd.address, back, first_step=2, last_step=4).all(), [])
            # Others have what they had.
            self.assertEqual([bytes_of(b) for b in peer.Fetch(packd.address, look, job="look", first_step=2, last_step=4).all()],
                             [whole[k] for k in (2, 3, 4)])
            self.check_told(packd, len(whole))

    def check_told(self, packd, steps):
        status = job_status(packd)
        self.assertEqual([(r.first, r.last) for r in status.skipped], [(2, 4)])
        self.assertEqual(explain(packd, 3).state, pb.STEP_SKIPPED)
        self.assertNotEqual(explain(packd, 5).state, pb.STEP_SKIPPED)
        self.assertEqual(packd.metrics()['packd_steps_skipped_total{feed="default",cause="operator"}'], 3)
        detail = self.fails(grpc.StatusCode.FAILED_PRECONDITION, "STEP_PLANNED", lambda: skip(packd, 7, steps))
        self.assertIn(str(steps), detail.text)
        self.fails(grpc.StatusCode.INVALID_ARGUMENT, "BAD_RANGE", lambda: skip(packd, 7, 6))
        self.fails(grpc.StatusCode.INVALID_ARGUMENT, "BAD_RANGE", lambda: skip(packd, 7, 7, why="x" * 256))
        self.fails(grpc.StatusCode.NOT_FOUND, "UNKNOWN_JOB", lambda: skip(packd, 0, 0, job="nobody"))

    def test_trainer_waits_for_no_skipped_step(self):
        """All that is planned is left out: planning goes on behind it, although the trainer received nothing of it."""
        feed = {**FEED, "plan_ahead": "1KiB"}
        with harness.Daemon(feeds=[feed]) as packd:
            push_all(packd)
            opened = peer.open_job(packd.address, **WORLD)
            planned = harness.wait_for("steps are planned", lambda: job_status(packd).planned_step)
            self.assertLess(planned, 10)
            skip(packd, 0, planned)
            opened = peer.open_job(packd.address, **WORLD)
            self.assertEqual(opened.first_step, planned + 1)
            fetch = peer.Fetch(packd.address, opened)
            self.assertEqual(fetch.next().header.step, planned + 1)
            fetch.close()

    def test_survives_kill_and_trim(self):
        feed = {**FEED, "jobs": [{"name": "train", "retain": {"commits": 1}}]}
        daemon = harness.Daemon(feeds=[feed], extra={"log": {"max_bytes": "16MiB", "durability": "process"}})
        with daemon as packd:
            push_all(packd)
            opened = peer.open_job(packd.address, **WORLD)
            first = skip(packd, 1, 1)
            second = skip(packd, 3, 3)
            self.assertEqual(second.generation, opened.generation + 2)
            packd.kill()
            packd.start()
            self.assertEqual([(r.first, r.last) for r in job_status(packd).skipped], [(1, 1), (3, 3)])
            back = peer.open_job(packd.address, **WORLD)
            self.assertEqual(back.generation, second.generation)
            joined = skip(packd, 2, 2)
            self.assertEqual((joined.generation, joined.next_step), (second.generation + 1, 4))
            self.assertGreater(joined.record, first.record)
            back = peer.open_job(packd.address, **WORLD)
            steps = [b.header.step for b in peer.Fetch(packd.address, back, last_step=5).all()]
            self.assertEqual(steps, [0, 4, 5])
            # Another world after a commit behind the gap; and one that has to resume inside it.
            with peer.channel(packd.address) as ch:
                peer.rpc.FeedStub(ch).Commit(pb.CommitRequest(job="train", generation=back.generation, step=0, fetched=0))
            other = peer.open_job(packd.address, **{**WORLD, "world_token": "x"})
            self.assertEqual(other.first_step, 4)
            self.assertEqual([(r.first, r.last) for r in other.skipped], [])
            resumed = peer.open_job(packd.address, **{**WORLD, "world_token": "y"}, resume_step=1)
            self.assertEqual(resumed.first_step, 4)

    def test_packctl_comes_back(self):
        """A trainer on libpackd is fenced while it waits, opens the job again by itself, and gets on behind the gap."""
        out = os.path.join(harness.scratch(), "out")
        with harness.Daemon(feeds=[FEED]) as packd:
            push_all(packd, count=200)
            world = ("--job", "train", "--dp-size", "1", "--rank", "0", "--world", "w")
            packd.packctl("fetch", *world, "--steps", "3", "--out", out)
            trainer = packd.start_packctl("fetch", *world, "--from", "3", "--steps", "200", "--out", out)
            last = harness.wait_for("it waits", lambda: max(0, job_status(packd).planned_step) or None)
            harness.wait_for("it has them all", lambda: job_status(packd).delivered_step >= last)
            reply = json.loads(packd.packctl("--json", "skip-steps", "--job", "train", "--first", "1", "--last", "2", "--why",
                                             "bad data").stdout)
            self.assertEqual(int(reply["next_step"]), 3)
            push = peer.Push(packd.address)
            self.assertEqual(push.welcome().next_seq, 200)
            push.block(SAMPLES[200:])
            push.wait_durable(len(SAMPLES))
            push.close()
            peer.end_feed(packd.address)
            stdout, stderr = trainer.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(trainer.returncode, 0, stderr + stdout)
            steps = sorted(int(re.search(r"step-(\d+)", name)[1]) for name in glob.glob(out + "/*"))
            self.assertEqual(steps, list(range(job_status(packd).planned_step + 1)))
            # A new run from the start leaves them out.
            fresh = os.path.join(harness.scratch(), "fresh")
            packd.packctl("fetch", "--job", "train", "--dp-size", "1", "--rank", "0", "--world", "v", "--from", "0", "--steps", "6",
                          "--out", fresh)
            steps = sorted(int(re.search(r"step-(\d+)", name)[1]) for name in glob.glob(fresh + "/*"))
            self.assertEqual(steps, [0, 3, 4, 5])
            self.assertIn("STEP_SKIPPED", packd.packctl("explain", "--job", "train", "--step", "2").stdout)


def faulty(step, rank_fault="boundary off by one", times=2, **extra):
    environment = {"PACKD_TEST_FAULT": rank_fault, "PACKD_TEST_FAULT_STEP": str(step), "PACKD_TEST_FAULT_TIMES": str(times)}
    return harness.Daemon(feeds=[FEED], environment=environment, program=FAULTY,
                          extra={"validate": {"backend": "cpu", "on_violation": "skip_step"}, **extra})


class ViolationTest(unittest.TestCase):
    def test_step_is_left_out(self):
        """The first batch of a step fails twice: nobody has anything of it, so nobody gets it."""
        with faulty(step=3, times=2) as packd:
            push_all(packd, end=True)
            world = {"dp_size": 1, "rows": 2, "world_token": "w"}
            opened = peer.open_job(packd.address, **world)
            fetch = peer.Fetch(packd.address, opened, credit=1)
            got = []
            with self.assertRaises(grpc.RpcError) as caught:
                while True:
                    got.append(fetch.next().header.step)
            self.assertEqual(peer.error_detail(caught.exception).reason, "FENCED")
            self.assertEqual(got, [0, 1, 2])
            back = peer.open_job(packd.address, **world)
            self.assertEqual((back.generation, [(r.first, r.last) for r in back.skipped]), (opened.generation + 1, [(3, 3)]))
            rest = [b.header.step for b in peer.Fetch(packd.address, back, first_step=3).all()]
            self.assertEqual(rest, list(range(4, job_status(packd).planned_step + 1)))
            self.assertEqual(packd.metrics()['packd_steps_skipped_total{feed="default",cause="violation"}'], 1)
            self.assertEqual(explain(packd, 3).state, pb.STEP_SKIPPED)
            self.assertRegex(packd.log(), r"ERROR step_left_out feed=default job=train step=3")
            self.assertEqual(packd.http("/readyz")[0], 200)
            status = peer.admin(packd.address, "Status", pb.StatusRequest())
            self.check_replay(status.validator.repro)

    def check_replay(self, repro):
        """The fault was planted in memory: built again from the repro the batch is clean, and a changed byte is found."""
        done = subprocess.run([REPLAY, repro], capture_output=True, text=True, timeout=harness.DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("structural check: passed", done.stdout)
        self.assertIn("attention probe: passed", done.stdout)
        with open(os.path.join(repro, "bodies.bin"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        done = subprocess.run([REPLAY, repro], capture_output=True, text=True, timeout=harness.DEADLINE_S)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("SAMPLE_DAMAGED", done.stdout)
        self.assertEqual(subprocess.run([REPLAY, "/nonexistent"], capture_output=True, timeout=harness.DEADLINE_S).returncode, 2)

    def test_delivered_means_stop(self):
        """One rank has its batch of the step when the other's fails: the step cannot be left out any more."""
        with faulty(step=1, times=2) as packd:
            push_all(packd, end=True)
            world = {"dp_size": 1, "rows": 1, "accum": 2, "world_token": "w"}
            opened = peer.open_job(packd.address, **world)
            fetch = peer.Fetch(packd.address, opened, first_step=1, first_micro=1, credit=1)
            with self.assertRaises(grpc.RpcError) as caught:
                fetch.next()
            self.assertEqual(peer.error_detail(caught.exception).reason, "FENCED")
        with faulty(step=1, times=2) as packd:
            push_all(packd, end=True)
            opened = peer.open_job(packd.address, **world)
            ahead = peer.Fetch(packd.address, opened, first_step=2, credit=1)  # somebody is ahead already
            self.assertEqual(ahead.next().header.step, 2)
            ahead.close()
            with self.assertRaises(grpc.RpcError) as caught:
                peer.Fetch(packd.address, opened, first_step=1, credit=1).next()
            self.assertEqual(peer.error_detail(caught.exception).reason, "HALTED", caught.exception.details())
            self.assertEqual(packd.http("/readyz")[0], 503)
            self.assertEqual(list(job_status(packd).skipped), [])

    def test_all_ranks_agree(self):
        """Eight ranks at once: whatever each has when a batch fails, in the end all have the same steps or all have stopped."""
        for step in (0, 2, 5):
            with self.subTest(step=step), faulty(step=step, times=2) as packd:
                push_all(packd, end=True)
                results = [None] * 8
                ranks = [threading.Thread(target=run_rank, args=(packd, r, results)) for r in range(8)]
                for thread in ranks:
                    thread.start()
                for thread in ranks:
                    thread.join(harness.DEADLINE_S)
                self.assertNotIn(None, results)
                if any(end == "HALTED" for _, end in results):
                    self.assertTrue(all(end == "HALTED" for _, end in results), results)
                    self.assertEqual(list(job_status(packd).skipped), [])
                    continue
                steps = [k for k in range(job_status(packd).planned_step + 1) if k != step]
                for got, end in results:
                    self.assertEqual((got, end), (steps, "END"))


def run_rank(packd, rank, results):
    """What libpackd does: a fenced rank opens the job again and goes on behind what it has."""
    world = {"dp_size": 8, "rows": 1, "world_token": "w", "dp_rank": rank}
    got, reason = [], "FENCED"
    while reason == "FENCED":
        try:
            opened = peer.open_job(packd.address, **world)
            fetch = peer.Fetch(packd.address, opened, dp_rank=rank, first_step=got[-1] + 1 if got else opened.first_step)
            while (batch := fetch.next()) is not None:
                got.append(batch.header.step)
            reason = "END"
        except grpc.RpcError as error:
            reason = peer.error_detail(error).reason
        fetch.close()
    results[rank] = (got, reason)


if __name__ == "__main__":
    unittest.main()
