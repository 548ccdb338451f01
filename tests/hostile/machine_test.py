"""A machine that is against one: a disk that is slow, small or never done, clocks that jump, processes that are stopped, little memory and small files.
packd goes on, or says by name what it lacks; what was acknowledged is there afterwards, once, with the same bytes."""

import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import threading
import time
import unittest

import grpc

import harness
import peer
from peer import pb

FULL = os.environ.get("PACKD_FULL") == "1"
SEED = int(os.environ.get("PACKD_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
LIBRARY = os.path.join(harness.TOP, "tests", "hostile", "libpackd_hostile.so")
DRIVER = os.path.join(harness.TOP, "tests", "fault", "driver")
STOPPED_S, PATIENCE_S = (65, 60) if FULL else (7, 5)  # the daemon, for longer than its limits.stall
STALL_S = 3
FEED = {"name": "default", "seq_len": 256, "window": 32, "over_length": "split"}
MIB = 1 << 20
DAY_NS = 86_400 * 10**9


def samples_of(seed, count):
    rng = random.Random(seed)
    return [[rng.randrange(1, 1000) for _ in range(rng.randrange(1, 300))] for _ in range(count)]


def push_all(address, samples, stream="s", begin=0):
    """Pushes until all of them are durable, through calls that end because the log is full, the daemon is away or this process was late by limits.stall."""
    while True:
        push = peer.Push(address, stream=stream, timeout=120)
        try:
            push.welcome()
            push.durable_seq = push.next_seq
            while push.next_seq < len(samples):
                push.block(samples[push.next_seq:push.next_seq + 40])
            push.wait_durable(len(samples))
            push.close()
            return
        except grpc.RpcError as error:
            detail = peer.error_detail(error)
            if error.code() != grpc.StatusCode.UNAVAILABLE and not (detail and detail.reason == "STALL"):
                raise
            push.outgoing.put(None)
            push.channel.close()
            threading.Event().wait(0.05)


def read_all(address, job, **more):
    """{step: payload} and {(stream, seq): tokens} of the whole feed, with its end."""
    opened = peer.open_job(address, job=job, rows=2, **more)
    fetch = peer.Fetch(address, opened, job=job, timeout=120)
    payloads, whole = {}, {}
    for batch in fetch.all():
        payloads[batch.header.step] = batch.payload
        for (stream, seq, part), tokens in sorted(batch.samples()):
            assert part > 0 or (stream, seq) not in whole, (stream, seq)
            whole.setdefault((stream, seq), {})[part] = tokens
    fetch.close()
    return payloads, {key: parts[0] + [t for part in sorted(parts) if part > 0 for t in parts[part][1:]] for key, parts in whole.items()}


class Controls:
    """The file through which the preloaded library is told what to do."""

    FIELDS = ("clock_offset_ns", "sync_held", "syncs_waiting", "sync_sleep_ns", "disk_bytes", "refused")

    def __init__(self, directory):
        self.path = os.path.join(directory, "controls")
        with open(self.path, "wb") as file:
            file.write(bytes(8 * len(self.FIELDS)))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 8 * len(self.FIELDS))

    def set(self, field, value):
        struct.pack_into("<q", self.map, 8 * self.FIELDS.index(field), value)

    def get(self, field):
        return struct.unpack_from("<q", self.map, 8 * self.FIELDS.index(field))[0]


class MachineTest(unittest.TestCase):
    def setUp(self):
        self.directory = harness.scratch()
        self.socket = "unix:" + os.path.join(self.directory, "s")

    def preloaded(self, feed=None, **extra):
        """A daemon under the library, and what controls it."""
        if subprocess.run([DRIVER], capture_output=True).returncode == 77:
            print("SKIP: a sanitizer build takes no preloaded library", flush=True)
            self.skipTest("sanitizer build")
        controls = Controls(self.directory)
        environment = {"LD_PRELOAD": LIBRARY, "PACKD_HOSTILE_FILE": controls.path, "PACKD_HOSTILE_DIR": os.path.join(self.directory, "data")}
        return controls, harness.Daemon([feed or FEED], directory=self.directory, environment=environment, arguments=["--listen", self.socket],
                                        extra={"drain": "1s", "log": {"durability": "fsync", "max_bytes": "64MiB"}, **extra})

    def expect_all(self, samples, whole, streams=("s",)):
        self.assertEqual(whole, {(stream, seq): tokens for stream in streams for seq, tokens in enumerate(samples)})

    def end_and_expect(self, address, samples, streams=("s",), job="train", **more):
        """Ends the feed; the job gets exactly these samples of each stream."""
        peer.end_feed(address)
        self.expect_all(samples, read_all(address, job, **more)[1], streams)

    # ---- disk ----

    def test_a_sync_that_does_not_return(self):
        """Nothing is acknowledged meanwhile, everything that needs no disk goes on, and the ack follows when the disk is done."""
        samples = samples_of(SEED, 300)
        controls, daemon = self.preloaded()
        with daemon as packd:
            push_all(packd.address, samples[:200])
            opened = peer.open_job(packd.address, rows=2)
            fetch = peer.Fetch(packd.address, opened)
            first = fetch.next()
            controls.set("sync_held", 1)
            push = peer.Push(packd.address, timeout=120)
            acked = threading.Event()

            def wait():
                push.welcome()
                push.block(samples[200:])
                push.wait_durable(len(samples))
                acked.set()

            waiter = threading.Thread(target=wait, daemon=True)
            waiter.start()
            harness.wait_for("a sync is held", lambda: controls.get("syncs_waiting") > 0)
            again = peer.Fetch(packd.address, opened, first_step=first.header.step, last_step=first.header.step)
            self.assertEqual(again.next().payload, first.payload)
            self.assertEqual(fetch.next().header.step, 1)
            for path in ("/livez", "/readyz", "/metrics", "/"):
                self.assertEqual(packd.http(path)[0], 200, path)
            self.assertFalse(acked.is_set())
            controls.set("sync_held", 0)
            self.assertTrue(acked.wait(harness.DEADLINE_S))
            fetch.close()
            push.close()
            self.end_and_expect(packd.address, samples, job="look", kind=pb.JOB_READER)

    def test_a_slow_disk(self):
        """Each sync takes 50 ms: groups grow, and everything arrives."""
        samples = samples_of(SEED, 2000)
        controls, daemon = self.preloaded()
        with daemon as packd:
            controls.set("sync_sleep_ns", 50_000_000)
            streams = ("a", "b", "c", "d")
            pushes = [threading.Thread(target=push_all, args=(packd.address, samples, stream)) for stream in streams]
            for push in pushes:
                push.start()
            for push in pushes:
                push.join(harness.DEADLINE_S)
            controls.set("sync_sleep_ns", 0)
            self.end_and_expect(packd.address, samples, streams)

    def test_a_disk_that_is_full_for_a_while(self):
        """The file cannot grow: producers wait without losing anything, ready batches are served, and when there is room all goes on."""
        samples = samples_of(SEED, 4000)
        controls, daemon = self.preloaded()
        with daemon as packd:
            push_all(packd.address, samples[:400])
            opened = peer.open_job(packd.address, rows=2)
            fetch = peer.Fetch(packd.address, opened, timeout=300)
            self.assertEqual(fetch.next().header.step, 0)
            controls.set("disk_bytes", os.path.getsize(os.path.join(self.directory, "data", "data.mdb")))
            push = threading.Thread(target=push_all, args=(packd.address, samples), daemon=True)
            push.start()
            harness.wait_for("writes are refused", lambda: controls.get("refused") > 3)
            self.assertEqual(fetch.next().header.step, 1)
            self.assertEqual(packd.http("/livez")[0], 200)
            self.assertIn("no space left", packd.log())
            self.assertTrue(push.is_alive())
            controls.set("disk_bytes", 0)
            push.join(harness.DEADLINE_S)
            self.assertFalse(push.is_alive())
            fetch.close()
            self.end_and_expect(packd.address, samples, job="look", kind=pb.JOB_READER)

    def test_a_full_disk_at_the_start(self):
        """Refused by name, or up and full; with room again everything is there."""
        samples = samples_of(SEED, 200)
        controls, daemon = self.preloaded()
        daemon.start()
        push_all(daemon.address, samples)
        daemon.kill()
        controls.set("disk_bytes", 1)
        try:
            daemon.start()
            daemon.kill()
        except AssertionError:
            self.assertEqual(daemon.process.wait(harness.DEADLINE_S), 1, daemon.log())
            self.assertIn("space", daemon.log().splitlines()[-1])
        controls.set("disk_bytes", 0)
        with daemon as packd:
            self.end_and_expect(packd.address, samples)

    def test_small_files(self):
        """ulimit -f below log.max_bytes: a full disk, no death by signal."""
        samples = samples_of(SEED, 8000)
        daemon = self.limited("-f", 4096)  # KiB
        push = threading.Thread(target=push_all, args=(self.socket, samples), daemon=True)
        with daemon as packd:
            push.start()
            harness.wait_for("it is full", lambda: "no space left" in packd.log() or packd.process.poll() is not None)
            self.assertIsNone(packd.process.poll(), packd.log())
            self.assertEqual(packd.http("/livez")[0], 200)
            packd.program = harness.PACKD
            packd.stop()
            packd.start()
            push.join(harness.DEADLINE_S)
            self.assertFalse(push.is_alive())
            self.end_and_expect(packd.address, samples)

    # ---- clock ----

    def test_a_clock_that_jumps(self):
        """A day ahead, two back, to 1970, by forty years, under way and between two starts: nobody is cut off, flushed or let go of, no step changes."""
        samples = samples_of(SEED, 800)
        feed = {**FEED, "max_wait": "1h", "idle_release": "1h", "jobs": [{"name": "train", "retain": {"commits": 3, "time": "1h"}}]}
        jumps = [0, DAY_NS, -DAY_NS, 40 * 365 * DAY_NS, -time.time_ns() + 10**9, 0]
        controls, daemon = self.preloaded(feed)
        with daemon as packd:
            push = peer.Push(self.socket, timeout=300)
            push.welcome()
            opened, fetch = None, None
            for number, jump in enumerate(jumps):
                controls.set("clock_offset_ns", jump)
                if number == 3:
                    push.close()
                    fetch.close()
                    packd.kill()
                    packd.start()
                    push, fetch = peer.Push(self.socket, timeout=300), None
                    push.welcome()
                push.block(samples[push.next_seq:push.next_seq + 100])
                push.wait_durable(push.next_seq)
                opened = peer.open_job(self.socket, rows=2, world_token="w")
                fetch = fetch or peer.Fetch(self.socket, opened, timeout=300)
                step = fetch.next().header.step
                self.commit(opened, step)
                self.assertEqual(packd.http("/readyz")[0], 200)
            push.block(samples[push.next_seq:])
            push.wait_durable(len(samples))
            push.close()
            self.assertNotIn("job_released", packd.log())
            status = packd.status()["feeds"][0]
            self.assertEqual(int(status["jobs"][0]["committed_step"]), step)
            peer.end_feed(self.socket)
            while fetch.next():
                pass
            fetch.close()
            jumped, whole = read_all(self.socket, "look", kind=pb.JOB_READER, from_start=True)
            self.expect_all(samples, whole)
        with harness.Daemon([feed]) as packd:
            push_all(packd.address, samples)
            peer.end_feed(packd.address)
            self.assertEqual(read_all(packd.address, "look", kind=pb.JOB_READER)[0], jumped)

    def commit(self, opened, step):
        with peer.channel(self.socket) as channel:
            peer.rpc.FeedStub(channel).Commit(pb.CommitRequest(job="train", log_id=opened.log_id, generation=opened.generation, step=step,
                                                               fetched=step), timeout=60)

    # ---- stopped processes ----

    def test_a_daemon_that_is_stopped(self):
        """Its clients wait, and go on where they were."""
        samples = samples_of(SEED, 1500)
        with harness.Daemon([FEED], directory=self.directory, arguments=["--listen", self.socket], extra={"limits": {"stall": f"{PATIENCE_S}s"}}) as packd:
            rows = os.path.join(self.directory, "rows.jsonl")
            with open(rows, "w") as file:
                file.writelines(json.dumps({"tokens": tokens}) + "\n" for tokens in samples)
            fetch = packd.start_packctl("--timeout", "10m", "--json", "fetch", "--job", "train", "--dp-size", 1, "--rank", 0, "--rows", 2)
            self.addCleanup(fetch.kill)
            push = peer.Push(self.socket, stream="t", timeout=300)
            push.welcome()
            os.kill(packd.process.pid, signal.SIGSTOP)
            pushing = packd.start_packctl("--timeout", "10m", "push", "--stream", "s", "--end", rows)
            self.addCleanup(pushing.kill)
            push.block([[1, 2, 3]])
            threading.Event().wait(STOPPED_S)
            self.assertIsNone(fetch.poll())
            self.assertIsNone(pushing.poll())
            os.kill(packd.process.pid, signal.SIGCONT)
            push.wait_durable(1)
            push.close()
            _, error = pushing.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(pushing.returncode, 0, error)
            packd.packctl("end-feed")
            out, error = fetch.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(fetch.returncode, 0, error)
            lines = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(sum(line["samples"] for line in lines if line["type"] == "batch"), len(samples) + 1)

    def test_clients_that_are_stopped(self):
        """A producer and a rank are stopped for longer than limits.stall; others do not notice, and both go on afterwards."""
        samples = samples_of(SEED, 3000)
        with harness.Daemon([FEED], directory=self.directory, arguments=["--listen", self.socket], extra={"limits": {"stall": f"{STALL_S}s"}}) as packd:
            rows = os.path.join(self.directory, "rows.jsonl")
            with open(rows, "w") as file:
                file.writelines(json.dumps({"tokens": tokens}) + "\n" for tokens in samples)
            push_all(packd.address, samples, "other")
            fetch = packd.start_packctl("--timeout", "10m", "--json", "fetch", "--job", "train", "--dp-size", 1, "--rank", 0, "--rows", 2)
            pushing = packd.start_packctl("--timeout", "10m", "push", "--stream", "s", "--end", rows)
            for process in (fetch, pushing):
                self.addCleanup(process.kill)
            self.assertEqual(json.loads(fetch.stdout.readline())["type"], "batch")
            for process in (fetch, pushing):
                process.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            opened = peer.open_job(packd.address, job="look", rows=2, kind=pb.JOB_READER)
            others = peer.Fetch(packd.address, opened, job="look", last_step=40)
            self.assertEqual(len(others.all()), 41)
            push_all(packd.address, samples[:100], "third")
            threading.Event().wait(max(0, STALL_S + STOPPED_S - (time.monotonic() - begun)))
            for process in (fetch, pushing):
                process.send_signal(signal.SIGCONT)
            _, error = pushing.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(pushing.returncode, 0, error)
            packd.packctl("end-feed")
            out, error = fetch.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(fetch.returncode, 0, error)
            whole = read_all(packd.address, "audit", kind=pb.JOB_READER, from_start=True)[1]
            self.assertEqual(len(whole), 2 * len(samples) + 100)

    # ---- memory ----

    def limited(self, flag, value):
        """A daemon under `ulimit FLAG VALUE`."""
        program = os.path.join(self.directory, "packd")
        with open(program, "w") as file:
            file.write(f'#!/bin/sh\nulimit {flag} {value}\nexec {harness.PACKD} "$@"\n')
        os.chmod(program, 0o755)
        return harness.Daemon([FEED], directory=self.directory, program=program, arguments=["--listen", self.socket],
                              extra={"drain": "1s", "log": {"max_bytes": "64MiB"}, "memory": {"ingest": "8MiB", "batches": "32MiB"}})

    def test_little_memory(self):
        """ulimit -v from next to nothing upwards: refused with a line that names what is lacking, or it serves; whatever becomes of it under load,
        what was acknowledged is there at the next start."""
        if subprocess.run([DRIVER], capture_output=True).returncode == 77:
            self.skipTest("a sanitizer needs terabytes of address space")
        samples = samples_of(SEED, 1500)
        ends, served = {}, False
        for mib in (64, 128, 256, 320, 352, 384, 416, 448, 480, 512, 768, 1024) if FULL else (64, 256, 400, 1024):
            shutil.rmtree(os.path.join(self.directory, "data"), True)
            daemon = self.limited("-v", mib << 10)
            before = daemon.log() if os.path.exists(daemon.stderr_path) else ""
            try:
                daemon.start()
            except AssertionError:
                ends[mib] = daemon.process.wait(harness.DEADLINE_S), daemon.log()[len(before):].splitlines()[-1]
                self.assertIn(ends[mib][0], (1, 127), ends[mib])  # 127: there is no room even for its libraries
                self.assertRegex(ends[mib][1], r"error|memory|log_|cannot", ends[mib])
                continue
            ends[mib] = self.under_load(daemon, samples)
            served |= ends[mib] == "served"
        print("address space, MiB:", json.dumps(ends, indent=1), flush=True)
        self.assertTrue(served)

    def under_load(self, daemon, samples):
        """How it went; checked at a start without the limit."""
        acked, how = 0, "served"
        try:
            push = peer.Push(self.socket, timeout=60)
            push.welcome()
            while push.next_seq < len(samples):
                push.block(samples[push.next_seq:push.next_seq + 40])
            push.wait_durable(len(samples))
            push.close()
            fetch = peer.Fetch(self.socket, peer.open_job(self.socket, rows=2), last_step=40)
            self.assertEqual(len(fetch.all()), 41)
        except grpc.RpcError as error:
            how = f"{error.code().name}: {error.details()}"
        acked = push.durable_seq
        if daemon.process.poll() is None:
            daemon.kill()
        else:
            how = f"ended with {daemon.process.returncode}: {daemon.log().splitlines()[-1]}"
        daemon.program = harness.PACKD
        with daemon as packd:
            stream = peer.admin(packd.address, "Status", pb.StatusRequest(streams=True)).feeds[0].streams
            self.assertGreaterEqual(stream[0].next_seq if stream else 0, acked)
            push_all(packd.address, samples)
            self.end_and_expect(packd.address, samples, job="audit", kind=pb.JOB_READER, from_start=True)
        os.makedirs(self.directory, exist_ok=True)
        return how


if __name__ == "__main__":
    print("seed", SEED, flush=True)
    unittest.main()
