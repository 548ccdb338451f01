"""Abuse over the network, on every address that packd has, while good clients work: memory stays within its budget, descriptors and threads come back, a
newcomer is served again at once, and the good clients' data are exact. What others' calls take meanwhile is printed beside an empty C-core server under
the same flood, for the table in docs/RELIABILITY.md.

    PACKD_FULL         every attack on every address, for seconds, and the empty server's columns
    PACKD_ABUSE        names of attacks, with commas between them
    PACKD_ABUSE_AT     names of addresses: listen, socket, admin, probes, http
    PACKD_ABUSE_S      seconds of each attack
"""

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
import unittest

import grpc

import attacks
import harness
import peer
from peer import pb

FULL = os.environ.get("PACKD_FULL") == "1"
SEED = int(os.environ.get("PACKD_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
SECONDS = float(os.environ.get("PACKD_ABUSE_S", "3" if FULL else "0.4"))
EMPTY = os.path.join(harness.TOP, "tests", "hostile", "empty_server")
ATTACKS = os.path.join(harness.TOP, "tests", "hostile", "attacks.py")
DRIVER = os.path.join(harness.TOP, "tests", "fault", "driver")
MIB = 1 << 20
# memory.ingest 8, memory.batches 32, 8,192 calls and 4,096 connections in gRPC's hands, what frames and acks are under way, 64 of free heap
PEAK_BYTES, AFTER_BYTES = 384 * MIB, 144 * MIB
BACK_S = 30  # descriptors, threads, memory
NEWCOMER_S = 5 if FULL else 20  # the short form runs beside other tests
FEED = {"name": "default", "seq_len": 1024, "window": 16, "jobs": [{"name": "train", "retain": {"commits": 1}}]}
OF_HTTP = ("HTTP/2", "pipelined, unread", "huge header", "huge path", "chunked lies", "endless body", "slow-loris HTTP")
OF_ALL = ("random bytes", "TLS hello", "HTTP/1", "silent", "connects and resets")
HEALTH = "/grpc.health.v1.Health/Check"


def sample(seq):
    return [1 + (seq * 31 + i * 7) % 900 for i in range(20 + seq % 300)]


class Good:
    """A producer and a rank that go on all the time; every sample has to arrive once, with its tokens."""

    def __init__(self, address):
        self.address, self.over = address, threading.Event()
        self.pushed, self.got, self.error = 0, {}, None
        self.threads = [threading.Thread(target=self.guard, args=(what,), daemon=True) for what in (self.produce, self.train)]
        for thread in self.threads:
            thread.start()

    def guard(self, what):
        try:
            what()
        except Exception as error:  # told by the test
            self.error = self.error or error

    def produce(self):
        push = peer.Push(self.address, stream="good", timeout=3600)
        push.welcome()
        while not self.over.wait(0.02):
            push.block([sample(seq) for seq in range(push.next_seq, push.next_seq + 8)])
            push.wait_durable(push.next_seq)
            self.pushed = push.durable_seq
        push.end_stream()
        push.close()

    def train(self):
        opened = peer.open_job(self.address, world_token="w")
        fetch = peer.Fetch(self.address, opened, timeout=3600)
        while (batch := fetch.next()) is not None:
            for (stream, seq, part), tokens in batch.samples():
                if stream == "good":
                    assert (seq, part) not in self.got
                    self.got[seq, part] = tokens
            if batch.header.step % 50 == 49:
                with peer.channel(self.address) as channel:
                    peer.rpc.FeedStub(channel).Commit(pb.CommitRequest(job="train", log_id=opened.log_id, generation=opened.generation,
                                                                       step=batch.header.step, fetched=batch.header.step), timeout=60)
        fetch.close()

    def finish(self, case, admin):
        self.over.set()
        self.threads[0].join(harness.DEADLINE_S)
        peer.end_feed(admin)
        self.threads[1].join(harness.DEADLINE_S)
        case.assertFalse(any(thread.is_alive() for thread in self.threads))
        case.assertIsNone(self.error)
        case.assertEqual(self.got, {(seq, 0): sample(seq) for seq in range(self.pushed)})


class Probe(threading.Thread):
    """Somebody else's calls, one after the other: what each takes, in ms; one that fails counts as lost."""

    def __init__(self, address, is_http=False):
        super().__init__(daemon=True)
        self.address, self.is_http = address, is_http
        self.over, self.taken, self.lost = threading.Event(), [], 0
        self.channel = None if is_http else peer.channel(address)
        self.start()

    def ask(self):
        if not self.is_http:
            self.channel.unary_unary(HEALTH)(b"", timeout=20)
            return
        connection = http.client.HTTPConnection(self.address, timeout=20)
        connection.request("GET", "/livez")
        connection.getresponse().read()
        connection.close()

    def run(self):
        while not self.over.wait(0.005):
            begin = time.monotonic()
            try:
                self.ask()
                self.taken.append(1000 * (time.monotonic() - begin))
            except (grpc.RpcError, OSError, http.client.HTTPException):
                self.lost += 1

    def stop(self):
        """p50, p99, most and lost, as text."""
        self.over.set()
        self.join(30)
        if self.channel:
            self.channel.close()
        taken = sorted(self.taken) or [float("nan")]
        return f"{taken[len(taken) // 2]:.1f} / {taken[len(taken) * 99 // 100]:.1f} / {taken[-1]:.1f}" + (f", {self.lost} lost" if self.lost else "")


def memory_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def run_attack(name, address, data, pid):
    """What it did, and the peak of the server's anonymous memory meanwhile."""
    attacker = subprocess.Popen([sys.executable, ATTACKS, name, address, str(SECONDS), str(SEED), data.hex()], stdout=subprocess.PIPE, text=True)
    peak = 0
    while attacker.poll() is None:
        peak = max(peak, memory_of(pid))
        threading.Event().wait(0.02)
    did = json.loads(attacker.communicate()[0])
    return did, peak


class AbuseTest(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        self.sanitized = subprocess.run([DRIVER], capture_output=True).returncode == 77

    def daemon(self):
        directory = harness.scratch()
        sockets = {name: f"unix:{directory}/{name}" for name in ("main", "admin", "probes")}
        daemon = harness.Daemon([FEED], directory=directory, arguments=["--listen", sockets["main"]],
                                extra={"memory": {"ingest": "8MiB", "batches": "32MiB"}, "log": {"max_bytes": "256MiB", "durability": "process"},
                                       "limits": {"handshake": "2s"}, "validate": {"fraction": 0.05}, "listen_health": [sockets["probes"]],
                                       "listen_admin": [sockets["admin"]]})
        return daemon, sockets

    def vital(self, pid):
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    def fetch_open(self, packd):
        opened = peer.open_job(packd.address, job="unread", rows=4, kind=pb.JOB_READER)
        return pb.FetchRequest(open=pb.FetchOpen(feed="default", job="unread", log_id=opened.log_id, generation=opened.generation, first_step=0,
                                                 credit_batches=1 << 20)).SerializeToString()

    def newcomer(self, packd, number):
        """Pushes, and fetches a batch, as somebody who comes only now; the seconds until that has worked."""
        begin = time.monotonic()

        def served():
            try:
                push = peer.Push(packd.address, stream=f"new{number}", timeout=20)
                push.welcome()
                push.block([[7] * 1024] * 4, first_seq=push.next_seq)
                push.wait_durable(push.next_seq)
                push.close()
                fetch = peer.Fetch(packd.address, peer.open_job(packd.address, job=f"new{number}", kind=pb.JOB_READER), job=f"new{number}", timeout=20)
                batch = fetch.next()
                fetch.close()
                return batch is not None
            except grpc.RpcError:
                return False

        harness.wait_for("a newcomer is served", served)
        return time.monotonic() - begin

    def cases(self, addresses):
        """(attack, name of the address): all of them, or one address each."""
        only, at = (os.environ.get(name, "").split(",") for name in ("PACKD_ABUSE", "PACKD_ABUSE_AT"))
        for name in (*attacks.FLOODS, *attacks.OTHERS):
            where = ["http"] if name in OF_HTTP else [a for a in addresses if a != "http" or name in OF_ALL]
            where = [a for a in where if at == [""] or a in at]
            if where and (only == [""] or name in only):
                yield from ((name, address) for address in (where if FULL else [self.rng.choice(where)]))

    def test_every_address(self):
        print("seed", SEED, flush=True)
        daemon, sockets = self.daemon()
        with daemon as packd:
            good = Good(packd.address)
            harness.wait_for("the good ones work", lambda: len(good.got) > 400 or good.error)
            addresses = {"listen": packd.address, "socket": sockets["main"], "admin": sockets["admin"], "probes": sockets["probes"], "http": packd.http_address}
            data, pid = self.fetch_open(packd), packd.process.pid
            slowest, highest = 0.0, 0
            for number, (name, where) in enumerate(self.cases(addresses)):
                before, probe = self.vital(pid), Probe(addresses[where], where == "http")
                did, peak = run_attack(name, addresses[where], data, pid)
                self.assertIsNone(packd.process.poll(), f"{name} on {where}: packd is gone\n{packd.log()[-4000:]}")
                latency, back = probe.stop(), self.newcomer(packd, number)
                slowest, highest = max(slowest, back), max(highest, peak)
                beside = self.empty(name, data) if FULL and where == "listen" else ""
                done = ", ".join(f"{value:,} {key}" for key, value in did.items())
                print(f"| {name} | {where} | {done} | {peak >> 20} | {latency} | {back:.2f} | {beside} |", flush=True)
                self.assertLess(back, NEWCOMER_S, name)
                self.expect_back(name, pid, before, peak)
                self.assertIsNone(good.error)
            print(f"highest anonymous memory {highest >> 20} MiB, slowest newcomer {slowest:.2f} s", flush=True)
            good.finish(self, sockets["admin"])

    def expect_back(self, name, pid, before, peak):
        harness.wait_for(f"{name}: descriptors and threads are back", lambda: all(now <= then + 10 for now, then in zip(self.vital(pid), before)), BACK_S)
        if not self.sanitized:
            self.assertLess(peak, PEAK_BYTES, name)
            harness.wait_for(f"{name}: memory is back", lambda: memory_of(pid) < AFTER_BYTES, BACK_S)

    def empty(self, name, data):
        """The same flood against the empty server: latency, memory, and how long a newcomer waits."""
        server = subprocess.Popen([EMPTY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            address = server.stdout.readline().strip()
            probe = Probe(address)
            _, peak = run_attack(name, address, data, server.pid)
            latency, begin = probe.stop(), time.monotonic()
            with peer.channel(address) as channel:
                channel.unary_unary(HEALTH)(b"", timeout=60, wait_for_ready=True)
            return f"{latency}; {peak >> 20} MiB; {time.monotonic() - begin:.2f} s"
        finally:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    unittest.main()
