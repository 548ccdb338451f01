"""A soak: producers, jobs, restarts, commits, weights, samples and steps left out, new rules, retention and failing writes, all at once for as long as one
likes, against the naive planner. In the end every pack is the one that the naive planner makes of the same samples, every sample that was acknowledged is
in it once a pass, with its bytes, and no job has seen a step in two forms; on the way descriptors, threads and memory of the daemon stand still.

It has three thirds: with kills; without (that is where the standing still is judged: one process all the time); with kills and failing writes.

    PACKD_SOAK_S       seconds: 45, with PACKD_FULL 1800
    PACKD_TEST_SEED    the same data and the same events (their timing is the machine's)
"""

import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import grpc

import harness
import peer
import soak_clients as clients
from peer import pb

FULL = os.environ.get("PACKD_FULL") == "1"
SECONDS = float(os.environ.get("PACKD_SOAK_S", "1800" if FULL else "45"))
SEED = int(os.environ.get("PACKD_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
RATE = 60 if FULL else 150  # samples a second of each stream
MODEL = os.path.join(harness.TOP, "tests", "hostile", "soak_model")
FAULT = os.path.join(harness.TOP, "tests", "fault", "libpackd_fault.so")
DRIVER = os.path.join(harness.TOP, "tests", "fault", "driver")
STUCK_S = 90
MIB = 1 << 20
SLACK = {"descriptors": 24, "threads": 8, "memory": 32 * MIB}
LOG_FAILED = 74
STRATEGIES, OVER = ("exact", "sequential"), ("reject", "keep_head", "keep_tail", "split")
KEEP = {"retain": {"commits": 3}}
FEEDS = {
    "mix": {"streams": ["m-web", "m-code", "m-books"], "seq_len": 256, "window": 32, "strategy": "exact", "seg_align": 4, "over_length": "split", "plan_ahead": "256KiB",
            "sources": {"web": {"weight": 3}, "code": {"weight": 1}, "books": {"weight": 1, "on_end": "repeat", "max_passes": 5}},
            "jobs": [{"name": "big", **KEEP}, {"name": "slow", **KEEP}]},
    "turn": {"seq_len": 512, "window": 16, "merge": "ordered", "streams": ["t0", "t1", "t2"], "order": "shuffle", "shuffle_samples": 64, "seed": 7,
             "balance": "cost", "balance_bytes": "256KiB", "plan_ahead": "256KiB", "jobs": [{"name": "balanced", **KEEP}]},
    "flow": {"seq_len": 256, "window": 8, "strategy": "sequential", "width": "batch", "plan_ahead": "256KiB", "jobs": [{"name": "plain", **KEEP}]},
}
# The log holds what producers are ahead of trainers, however slow the machine: a full one would flush windows, which the model does not know of.
DAEMON = {"log": {"max_bytes": "512MiB", "durability": "fsync"}, "memory": {"ingest": "16MiB", "batches": "64MiB"}, "drain": "1s",
          "validate": {"fraction": 0.05}}


def streams_of(seed):
    """[Stream]: a lane each in `mix` and `turn`, together one lane in `flow`."""
    kinds = [("mix", "m-web", 500, "web", 0, None), ("mix", "m-code", 120, "code", 1, None), ("mix", "m-books", 90, "books", 2, 400),
             ("turn", "t0", 300, "", 0, None), ("turn", "t1", 100, "", 1, None), ("turn", "t2", 500, "", 2, None),
             ("flow", "f0", 200, "", 0, None), ("flow", "f1", 60, "", 0, None), ("flow", "f2", 250, "", 0, None)]
    return [clients.Stream(feed, name, number, seed, longest, source, lane, count)
            for number, (feed, name, longest, source, lane, count) in enumerate(kinds)]


class Vitals(threading.Thread):
    """Descriptors, threads and anonymous memory of the daemon's process, twice a second."""

    def __init__(self, packd):
        super().__init__(daemon=True)
        self.packd, self.taken, self.over = packd, [], threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            try:
                pid = self.packd.process.pid
                self.taken.append((time.monotonic(), pid, {"descriptors": len(os.listdir(f"/proc/{pid}/fd")), "threads": len(os.listdir(f"/proc/{pid}/task")),
                                                           "memory": self.packd.resident_bytes()}))
            except (OSError, AttributeError, AssertionError):
                continue  # between two processes

    def check(self, case, begin, end):
        """One process ran from begin to end: its last half is not above its first but for what a buffer takes that is full for the first time."""
        taken = [(at, pid, vital) for at, pid, vital in self.taken if begin <= at <= end]
        case.assertGreater(len(taken), 8)
        case.assertEqual(len({pid for _, pid, _ in taken}), 1)
        quarter, half = len(taken) // 4, len(taken) // 2
        for name, slack in SLACK.items():
            early = [vital[name] for _, _, vital in taken[quarter:half]]
            late = [vital[name] for _, _, vital in taken[half:]]
            print(f"  {name}: {min(early)} to {max(early)}, then {min(late)} to {max(late)}; {slope([(at, vital[name]) for at, _, vital in taken[quarter:]]):+.1f} "
                  f"a minute over {(end - begin) * 0.75:.0f} s", flush=True)
            case.assertLessEqual(max(late), max(early) + slack, name)


def slope(points):
    """Least squares, a minute."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


class Soak:
    """The daemon, its clients, and what happens to them."""

    def __init__(self, case):
        self.case, self.rng = case, random.Random(SEED)
        self.directory = harness.scratch()
        self.address = "unix:" + os.path.join(self.directory, "s")
        feeds = [{"name": name, "vocab_size": clients.VOCAB, **feed} for name, feed in FEEDS.items()]
        self.packd = harness.Daemon(feeds, directory=self.directory, arguments=["--listen", self.address], extra=DAEMON)
        self.streams = streams_of(SEED)
        self.record = clients.Record(self.streams)
        self.producers = [clients.Producer(self.address, stream, SEED + i, RATE) for i, stream in enumerate(self.streams)]
        self.trainers = [
            clients.Trainer(self.address, "mix", "big", [(2, 3, 2), (3, 2, 2), (4, 3, 1), (1, 6, 2)], self.record, SEED + 100),
            clients.Trainer(self.address, "mix", "slow", [(1, 4, 1)], self.record, SEED + 101, commit_every=20, pause_s=0.02),
            clients.Trainer(self.address, "turn", "balanced", [(2, 2, 2), (4, 1, 2), (2, 4, 1)], self.record, SEED + 102, balanced=True),
            clients.Trainer(self.address, "flow", "plain", [(1, 6, 1), (3, 2, 1), (2, 1, 3)], self.record, SEED + 103)]
        self.controls = {name: [] for name in FEEDS}
        self.skipped_steps, self.happened, self.faults = set(), {}, {}
        self.got_on = {}  # trainer: its steps, and since when it has had no more
        self.sanitized = subprocess.run([DRIVER], capture_output=True).returncode == 77

    # ---- what can happen ----

    def kill(self):
        self.packd.kill()
        self.packd.start()

    def restart(self):
        self.packd.stop()
        self.packd.start()

    def pause(self):
        os.kill(self.packd.process.pid, signal.SIGSTOP)
        threading.Event().wait(self.rng.uniform(0.3, 2))
        os.kill(self.packd.process.pid, signal.SIGCONT)

    def cut_producer(self):
        self.rng.choice(self.producers).cut()

    def cut_ranks(self):
        self.rng.choice(self.trainers).cut()

    def world(self):
        self.rng.choice([trainer for trainer in self.trainers if len(trainer.shapes) > 1]).new_world(self.rng.randrange(2))

    def weights(self):
        weights = [self.rng.randrange(1, 9) for _ in range(3)]
        names = list(FEEDS["mix"]["sources"])
        answer = self.ask("SetMixture", pb.SetMixtureRequest(feed="mix", weights=[pb.SourceWeight(source=name, weight=weight) for name, weight
                                                                                   in zip(names, weights)]))
        if answer and answer.record:
            self.controls["mix"].append(f"weights {answer.effective_pack} " + " ".join(map(str, weights)))

    def skip_samples(self):
        producer = self.rng.choice([p for p in self.producers if p.stream.feed != "flow"])
        first = producer.acked - 1 - self.rng.randrange(200)
        last = first + self.rng.randrange(1, 40)
        if first < 0 or last >= producer.acked:
            return
        answer = self.ask("SkipSamples", pb.SkipSamplesRequest(feed=producer.stream.feed, stream=producer.stream.name, first_seq=first, last_seq=last,
                                                               why="soak"))
        if answer:
            self.controls[producer.stream.feed].append(f"skip {answer.effective_pack} {producer.stream.number} {first} {last}")

    def skip_steps(self):
        job = next(job for feed in self.packd.status()["feeds"] if feed["name"] == "mix" for job in feed["jobs"] if job["name"] == "slow")
        planned, delivered = int(job.get("planned_step", 0)), int(job.get("delivered_step", 0))
        first = delivered + 2
        if planned > first:
            last = min(planned, first + self.rng.randrange(3))
            if self.ask("SkipSteps", pb.SkipStepsRequest(feed="mix", job="slow", first=first, last=last, why="soak")):
                self.skipped_steps.update(range(first, last + 1))

    def rules(self):
        """Other rules for `mix` by SIGHUP; the log line says from which pack on."""
        feed = next(feed for feed in self.packd.config["feeds"] if feed["name"] == "mix")
        before = self.packd.log().count("feed_reconfigured")
        old = dict(feed)
        feed.update(window=self.rng.choice((16, 24, 32, 40)), strategy=self.rng.choice(STRATEGIES), over_length=self.rng.choice(OVER[1:]))
        if feed == old:
            return
        self.packd.write_config()
        os.kill(self.packd.process.pid, signal.SIGHUP)
        harness.wait_for("the new rules", lambda: self.packd.log().count("feed_reconfigured") > before)
        line = [line for line in self.packd.log().splitlines() if "feed_reconfigured" in line][-1]
        pack = int(line.split("from_pack=")[1].split()[0])
        self.controls["mix"].append(f"live {pack} {feed['window']} {STRATEGIES.index(feed['strategy'])} 0 0 {OVER.index(feed['over_length'])}")

    def look(self):
        """Somebody looks: nothing changes."""
        self.packd.status()
        self.packd.metrics()
        trainer = self.rng.choice(self.trainers)
        if trainer.next_step:
            peer.admin(self.address, "Explain", pb.ExplainRequest(feed=trainer.feed, job=trainer.job, step=trainer.next_step - 1))

    def fault(self):
        """A daemon of which one write or sync will fail; it goes on, or ends with a line and is started again."""
        kind, error = self.rng.choice((("write", 5), ("write", 28), ("sync", 5)))
        report = os.path.join(self.directory, "report")
        self.packd.kill()
        self.packd.environment = {"LD_PRELOAD": FAULT, "PACKD_FAULT_DIR": self.directory, "PACKD_FAULT_REPORT": report, "PACKD_FAULT_KIND": kind,
                                  "PACKD_FAULT_AT": str(self.rng.randrange(1, 1500)), "PACKD_FAULT_ERRNO": str(error)}
        try:
            self.packd.start()
        except AssertionError:
            if self.packd.process.poll() is None:
                raise
        end = time.monotonic() + 4
        while self.packd.process.poll() is None and time.monotonic() < end:
            threading.Event().wait(0.05)
        code = self.packd.process.poll()
        with open(report) as file:
            fired = "fired" in file.read()
        self.case.assertTrue(code is None or (fired and code in (1, LOG_FAILED)), f"ended with {code}, fault {kind} {error}, fired: {fired}")
        name = f"{kind} {error}: " + ("not reached" if not fired else "went on" if code is None else "ended")
        self.faults[name] = self.faults.get(name, 0) + 1
        self.packd.environment = {}
        if code is None:
            self.packd.kill()
        self.packd.start()

    def ask(self, call, request):
        """The answer; None where as many changes as there may be wait for their packs already."""
        try:
            return peer.admin(self.address, call, request)
        except grpc.RpcError as error:
            if peer.error_detail(error).reason not in ("TOO_MANY_SKIPS", "TOO_MANY_CHANGES"):
                raise
            self.happened[f"{call} refused"] = self.happened.get(f"{call} refused", 0) + 1
            return None

    # ---- the run ----

    def run_for(self, seconds, weights):
        """Events drawn by weight until the time is over; all clients are alive and get on."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            threading.Event().wait(self.rng.uniform(0.05, 0.6))
            event = self.rng.choices(list(weights), list(weights.values()))[0]
            getattr(self, event)()
            self.happened[event] = self.happened.get(event, 0) + 1
            self.judge()
            self.judge_steps()

    def judge(self):
        for client in (*self.producers, *self.trainers):
            if client.error is not None:
                raise client.error

    def judge_steps(self):
        """No trainer waits for ever: every stream goes on, so every feed does."""
        for trainer in self.trainers:
            steps, since = self.got_on.get(trainer.job, (-1, 0))
            if trainer.steps_done > steps:
                self.got_on[trainer.job] = trainer.steps_done, time.monotonic()
            elif time.monotonic() - since > STUCK_S:
                self.stuck(f"{trainer.job} has had no step")

    def stuck(self, what):
        faulthandler.dump_traceback(all_threads=True)
        raise AssertionError(f"{what} for {STUCK_S} s: {self.progress()}\n{self.packd.packctl('status').stdout}")

    def progress(self):
        return [producer.acked for producer in self.producers], [trainer.steps_done for trainer in self.trainers]

    def wait_for(self, what, condition):
        """Until it holds; somebody must get on all the time."""
        last, since = None, time.monotonic()
        while not condition():
            self.judge()
            now = self.progress()
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > STUCK_S:
                self.stuck(f"{what}: nobody has got on")
            threading.Event().wait(0.05)

    def finish(self):
        self.judge()
        for producer in self.producers:
            producer.finishing.set()
        self.wait_for("producers finish", lambda: all(producer.done for producer in self.producers))
        peer.end_feed(self.address, "flow")  # the others end with the streams that they declare
        self.wait_for("trainers finish", lambda: all(trainer.end is not None for trainer in self.trainers))

    # ---- the naive planner ----

    def model_lines(self, feed):
        """What the feed was given, in the naive planner's words."""
        config, producers = FEEDS[feed], [p for p in self.producers if p.stream.feed == feed]
        lanes = list(config.get("sources", {}).values()) or [{}] * len(config.get("streams", [""]))
        yield "rules " + " ".join(map(str, (
            config["seq_len"], config["window"], STRATEGIES.index(config.get("strategy", "exact")), int(config.get("order") == "shuffle"),
            config.get("shuffle_samples", 1), config.get("seed", 0), int(config.get("merge") == "ordered"), OVER.index(config.get("over_length", "reject")),
            config.get("seg_align", 1), len(lanes))))
        for number, lane in enumerate(lanes):
            yield f"lane {number} {lane.get('weight', 1)} {2 if lane.get('on_end') == 'repeat' else 0} {lane.get('max_passes', 1)}"
        if feed == "flow":
            yield from self.flow_heads(producers)
        for producer in producers if feed != "flow" else ():
            stream, reject = producer.stream, config["seq_len"] if config.get("over_length", "reject") == "reject" else 1 << 30
            for seq in range(producer.count):
                if not stream.bad(seq) and stream.length(seq) <= reject:
                    yield f"head {stream.lane} {stream.number} {seq} {stream.length(seq)}"
        yield from self.controls[feed]
        yield "go"

    def flow_heads(self, producers):
        """In the order of the packs, which is the log's; each stream's own order is kept, and none is missing."""
        next_seq = {p.stream.number: iter([seq for seq in range(p.count) if not p.stream.bad(seq)]) for p in producers}
        by_number = {p.stream.number: p.stream for p in producers}
        packs = self.record.packs["flow"]
        for pack in sorted(packs):
            for segment in packs[pack].split(" "):
                number, seq = (int(part) for part in segment.split(":")[:2])
                self.case.assertEqual(next(next_seq[number], None), seq, f"flow pack {pack}: {by_number[number].name} is out of order")
                yield f"head 0 {number} {seq} {by_number[number].length(seq)}"
        self.case.assertEqual([next(left, None) for left in next_seq.values()], [None] * len(next_seq), "flow: samples are missing")

    def compare(self, feed):
        done = subprocess.run([MODEL], input="\n".join(self.model_lines(feed)) + "\n", capture_output=True, text=True)
        self.case.assertEqual(done.returncode, 0, done.stderr)
        expected = done.stdout.splitlines()
        packs = self.record.packs[feed]
        different = [number for number, line in enumerate(expected) if packs.get(number) != line]
        if different or len(packs) != len(expected):
            number = different[0] if different else len(expected)
            raise AssertionError(f"{feed}: {len(packs)} packs served, {len(expected)} expected, {len(different)} differ; the first is {number}:\n"
                                 f"  expected {expected[number] if number < len(expected) else None}\n  served   {packs.get(number)}\n"
                                 + "\n".join(self.controls[feed]))
        print(f"  {feed}: {len(expected)} packs, {sum(line.count(':') // 5 for line in expected)} segments, {len(self.controls[feed])} changes: no difference",
              flush=True)

    def compare_steps(self):
        """Every job had every pack once; but for the steps left out."""
        for trainer in self.trainers:
            steps = self.record.steps[trainer.job]
            left_out = self.skipped_steps if trainer.job == "slow" else set()
            self.case.assertEqual(set(steps) | left_out, set(range(trainer.end + 1)), trainer.job)
            served = sorted(pack for entries in steps.values() for pack in entries.values() if pack >= 0)
            self.case.assertEqual(len(served), len(set(served)), trainer.job)
            if not left_out:
                self.case.assertEqual(served, list(range(len(self.record.packs[trainer.feed]))), trainer.job)


LIVE = {"cut_producer": 4, "cut_ranks": 3, "world": 4, "weights": 3, "skip_samples": 3, "skip_steps": 2, "rules": 2, "look": 4, "pause": 1}


class SoakTest(unittest.TestCase):
    def test_soak(self):
        print(f"seed {SEED}, {SECONDS:g} s", flush=True)
        soak = Soak(self)
        with soak.packd:
            vitals = Vitals(soak.packd)
            vitals.start()
            for client in (*soak.producers, *soak.trainers):
                client.start()
            soak.run_for(SECONDS / 3, {**LIVE, "kill": 3, "restart": 2})
            begin = time.monotonic()
            soak.run_for(SECONDS / 3, LIVE)
            end = time.monotonic()
            soak.run_for(SECONDS / 3, {**LIVE, "kill": 2, **({} if soak.sanitized else {"fault": 4})})
            soak.finish()
            self.report(soak)
            vitals.over.set()
            if not soak.sanitized:  # they keep what is freed
                vitals.check(self, begin, end)
            for feed in FEEDS:
                soak.compare(feed)
            soak.compare_steps()
            self.assertNotIn("log_full_flush", soak.packd.log())

    def report(self, soak):
        lowest = {feed["name"]: int(feed.get("lowest_pack", 0)) for feed in soak.packd.status()["feeds"]}
        print(f"  {sum(p.count for p in soak.producers)} samples in {sum(p.calls for p in soak.producers)} calls; "
              f"{sum(t.steps_done for t in soak.trainers)} steps, {soak.record.batches} batches, {soak.record.again} packs and places read again, "
              f"{sum(t.world + 1 for t in soak.trainers)} worlds; events {dict(sorted(soak.happened.items()))}; faults {dict(sorted(soak.faults.items()))}; "
              f"lowest pack kept {lowest}", flush=True)


if __name__ == "__main__":
    sys.setswitchinterval(0.002)
    unittest.main()
