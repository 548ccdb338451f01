"""Many clients that do nothing: idle streams and waiting ranks, each on a connection of its own. They cost a bounded share of memory and two
descriptors, no thread, and what the daemon does for others meanwhile leaves memory where it was.

With PACKD_FULL: 2,000 streams and 256 ranks.
"""

import asyncio
import os
import resource
import subprocess
import sys
import unittest

import grpc

import harness
import peer
from peer import pb, rpc

FULL = os.environ.get("PACKD_FULL") == "1"
STREAMS, RANKS = (2000, 256) if FULL else (200, 32)
BYTES_A_CLIENT = 96 << 10  # anonymous memory of the daemon for a connection with one open call; gRPC's part is most of it
ROUNDS = 150 if FULL else 30
AT_ONCE = 64
SLACK = 16 << 20
THREADS_MORE = 8  # gRPC's own pool breathes, whoever is connected


def raise_descriptor_limit(need):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(need, hard) if hard != resource.RLIM_INFINITY else need, hard))


class Clients:
    """Open calls, each on its own connection."""

    def __init__(self, address):
        self.address = address
        self.channels, self.calls = [], []
        self.gate = asyncio.Semaphore(AT_ONCE)

    def channel(self):
        channel = grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.channels.append(channel)
        return channel

    async def open_stream(self, number):
        async with self.gate:
            call = rpc.IngestStub(self.channel()).Push()
            await call.write(pb.PushRequest(hello=pb.Hello(feed="idle", stream=f"s{number}")))
            message = await call.read()
            assert message.WhichOneof("what") == "welcome", message
            self.calls.append(call)

    async def open_rank(self, opened, rank):
        async with self.gate:
            call = rpc.FeedStub(self.channel()).Fetch()
            await call.write(pb.FetchRequest(open=pb.FetchOpen(feed="idle", job="ranks", log_id=opened.log_id, generation=opened.generation,
                                                               dp_rank=rank, first_step=0, credit_batches=1)))
            message = await call.read()
            assert message.WhichOneof("what") == "waiting", message
            self.calls.append(call)

    async def open(self):
        await asyncio.gather(*(self.open_stream(i) for i in range(STREAMS)))
        opened = await asyncio.to_thread(peer.open_job, self.address, feed="idle", job="ranks", dp_size=RANKS)
        await asyncio.gather(*(self.open_rank(opened, rank) for rank in range(RANKS)))
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)  # closing thousands of channels one by one takes this package minutes


def run_clients(address):
    """The clients' process: says "open", and ends with its input, and with it all connections."""
    raise_descriptor_limit(STREAMS + RANKS + 512)
    asyncio.run(asyncio.wait_for(Clients(address).open(), 300))


def work(address, stream, rounds):
    """A producer and a rank of another feed that do something."""
    push = peer.Push(address, feed="busy", stream=stream)
    push.welcome()
    opened = peer.open_job(address, feed="busy", job=stream)
    fetch = peer.Fetch(address, opened, feed="busy", job=stream)
    for _ in range(rounds):
        push.block([[7] * 64] * 256, pieces=8)
        push.wait_durable(push.next_seq)
        for _ in range(50):
            assert fetch.next() is not None
    push.close()
    fetch.close()


class Idle(unittest.TestCase):
    def threads(self):
        return len(os.listdir(f"/proc/{self.packd.process.pid}/task"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.packd.process.pid}/fd"))

    def calls(self):
        metrics = self.packd.metrics()
        return metrics["packd_push_calls"], metrics["packd_fetch_calls"]

    def start_clients(self):
        clients = subprocess.Popen([sys.executable, os.path.abspath(__file__), "clients", self.packd.address], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(clients.kill)
        self.assertEqual(clients.stdout.readline(), "open\n")
        return clients

    def check_connected(self, empty, threads, descriptors):
        connected = self.packd.resident_bytes()
        print(f"{STREAMS} streams, {RANKS} ranks: {empty >> 10} KiB before, {connected >> 10} KiB connected, "
              f"{(connected - empty) / (STREAMS + RANKS) / 1024:.1f} KiB each, {threads} and {self.threads()} threads", flush=True)
        self.assertLess(connected - empty, (STREAMS + RANKS) * BYTES_A_CLIENT + SLACK)
        self.assertLessEqual(self.threads(), threads + THREADS_MORE)
        self.assertGreaterEqual(self.descriptors(), descriptors + 2 * (STREAMS + RANKS) - 2)

    def check_flat(self):
        work(self.packd.address, "first", ROUNDS)
        settled = self.packd.resident_bytes()
        work(self.packd.address, "second", 2 * ROUNDS)
        later = self.packd.resident_bytes()
        print(f"after {ROUNDS} rounds of work beside them {settled >> 10} KiB, after {3 * ROUNDS} {later >> 10} KiB", flush=True)
        self.assertLess(later, settled + SLACK)
        # a scrape tells the calls of up to a second ago
        harness.wait_for("only the idle calls are left", lambda: self.calls() == (STREAMS, RANKS))

    def test_idle(self):
        raise_descriptor_limit(STREAMS + RANKS + 512)  # the daemon's too
        feeds = [{"name": name, "seq_len": 256, "window": 16} for name in ("idle", "busy")]
        extra = {"log": {"durability": "process"}, "memory": {"batches": "16MiB"}, "validate": {"fraction": 0}}
        with harness.Daemon(feeds, extra=extra) as self.packd:
            work(self.packd.address, "warm", 10)
            empty, threads, descriptors = self.packd.resident_bytes(), self.threads(), self.descriptors()
            clients = self.start_clients()
            self.check_connected(empty, threads, descriptors)
            self.check_flat()
            clients.communicate()
            harness.wait_for("descriptors are given back", lambda: self.descriptors() <= descriptors + 4)
            self.assertLessEqual(self.threads(), threads + THREADS_MORE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["clients"]:
        run_clients(sys.argv[2])
    else:
        unittest.main()
