"""Producers, ranks and the daemon under kill -9 of any of them at any moment, in both durabilities: in the end every acknowledged sample is in
exactly one step, every step was the same on every read, and the batches are those of a run that nobody disturbed.

    PACKD_TEST_SEED, PACKD_TEST_KILLS     repeat one run
"""

import json
import os
import random
import subprocess
import sys
import threading
import unittest

import harness
import peer
from peer import pb

SEED = int(os.environ.get("PACKD_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
KILLS = int(os.environ.get("PACKD_TEST_KILLS", "400" if os.environ.get("PACKD_FULL") == "1" else "40"))
ENV = {key: value for key, value in os.environ.items() if not key.startswith("PACKD_")}
STREAMS = ["s0", "s1", "s2"]
RANKS, ROWS = 2, 2
FEED = {"name": "default", "seq_len": 256, "window": 64, "merge": "ordered", "streams": STREAMS, "over_length": "split",
        "jobs": [{"name": "train", "retain": {"bytes": "1GiB"}}]}


def produce(socket, stream, path):
    """The producer's process: sends the file's rows from where the server's log ends, as far as standard input allows; again after any failure."""
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    released = [0]
    more = threading.Condition()

    def listen():
        for line in sys.stdin:
            with more:
                released[0] = int(line)
                more.notify_all()

    def send(push):
        push.welcome()
        while push.next_seq < len(rows):
            with more:
                while released[0] <= push.next_seq:
                    more.wait()
                upto = min(released[0], push.next_seq + 17)
            push.block(rows[push.next_seq:upto])
        push.wait_durable(len(rows))
        push.end_stream()
        push.close()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        push = peer.Push(socket, stream=stream, timeout=120)
        try:
            send(push)
            return
        except peer.grpc.RpcError:
            push.outgoing.put(None)
            push.channel.close()
            threading.Event().wait(0.05)


class Producer:
    """One stream's producer, started again by whoever kills it."""

    def __init__(self, socket, stream, rows, directory):
        self.socket, self.stream = socket, stream
        self.count = len(rows)
        self.released = 0
        self.path = os.path.join(directory, f"{stream}.jsonl")
        with open(self.path, "w") as file:
            file.writelines(json.dumps(tokens) + "\n" for tokens in rows)
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "produce", self.socket, self.stream, self.path],
                                        stdin=subprocess.PIPE, text=True, env=ENV)
        self.release(self.released)

    def release(self, upto):
        self.released = upto
        try:
            self.process.stdin.write(f"{upto}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.start()

    def finish(self):
        assert self.process.wait(120) == 0, f"the producer of {self.stream} ended with {self.process.returncode}"
        self.process.stdin.close()


class World:
    """The ranks of a job; when one dies all start again, as a new world behind the last commit."""

    def __init__(self, socket, directory):
        self.socket, self.directory = socket, directory
        self.number = 0
        self.logs = []
        self.start()

    def start(self, *more):
        self.number += 1
        self.ranks = []
        for rank in range(RANKS):
            path = os.path.join(self.directory, f"fetch-{self.number}-{rank}")
            self.logs.append(path)
            with open(path, "w") as out, open(path + ".err", "w") as err:
                self.ranks.append(subprocess.Popen(
                    [harness.PACKCTL, "--server", self.socket, "--timeout", "60s", "--json", "fetch", "--job", "train", "--dp-size", str(RANKS),
                     "--rank", str(rank), "--rows", str(ROWS), "--world", f"w{self.number}", "--commit-every", "9", *more],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, env=ENV))

    def kill(self, random_):
        for rank in random_.sample(self.ranks, RANKS):
            rank.kill()
        for rank in self.ranks:
            rank.wait()
        self.start()

    def finish(self):
        for rank, path in zip(self.ranks, self.logs[-RANKS:]):
            code = rank.wait(120)
            with open(path + ".err") as err:
                assert code == 0, err.read()

    def check(self, case):
        """{(step, dp_rank): header digest}, the same wherever it was received; a killed rank's last line may be cut off."""
        seen, reads = {}, 0
        for path in self.logs:
            with open(path) as file:
                for line in file:
                    if not line.endswith("\n"):
                        continue
                    batch = json.loads(line)
                    if batch.get("type") != "batch":
                        continue
                    key = batch["step"], batch["dp_rank"]
                    reads += 1
                    case.assertEqual(seen.setdefault(key, batch["header_digest"]), batch["header_digest"], (path, key))
        return seen, reads


def read_all(address, job):
    """Payloads by (step, rank) and how often each sample part was served."""
    payloads, parts = {}, {}
    for rank in range(RANKS):
        opened = peer.open_job(address, job=job, dp_size=RANKS, rows=ROWS, dp_rank=rank, world_token="audit", kind=pb.JOB_READER, from_start=True)
        fetch = peer.Fetch(address, opened, job=job, dp_rank=rank)
        for batch in fetch.all():
            payloads[batch.header.step, rank] = batch.payload
            for key, tokens in batch.samples():
                parts.setdefault(key, []).append(tokens)
        fetch.close()
    return payloads, parts


class CrashTest(unittest.TestCase):
    def make_rows(self, rng, count):
        return [[[rng.randrange(1, 1000) for _ in range(rng.randrange(1, 300))] for _ in range(count)] for _ in STREAMS]

    def undisturbed(self, rows):
        with harness.Daemon(feeds=[FEED]) as packd:
            for stream, samples in zip(STREAMS, rows):
                text = "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in samples)
                packd.packctl("push", "--stream", stream, "--end", "-", stdin=text)
            return read_all(packd.address, "train2")[0]

    def run_one(self, durability, kills, seed):
        rng = random.Random(seed)
        print(f"{durability}: seed {seed}, {kills} kills", flush=True)
        rows = self.make_rows(rng, 400 + 20 * kills)
        directory = harness.scratch()
        socket = "unix:" + os.path.join(directory, "s")
        packd = harness.Daemon([FEED], directory=directory, arguments=["--listen", socket], extra={"log": {"durability": durability}})
        with packd:
            producers = [Producer(socket, stream, samples, directory) for stream, samples in zip(STREAMS, rows)]
            world = World(socket, directory)
            killed = self.disturb(rng, kills, packd, producers, world)
            for producer in producers:
                producer.finish()
            world.finish()
            world.start("--from", "0")
            world.finish()
            seen, reads = world.check(self)
            payloads, parts = read_all(packd.address, "audit")
            print("killed", killed, "steps", len(payloads) // RANKS, "reads", reads, flush=True)
            self.check_conserved(rows, parts)
            self.assertEqual(set(seen), set(payloads))
            plain = self.undisturbed(rows)
            self.assertEqual(set(plain), set(payloads))
            for key, payload in payloads.items():
                self.assertEqual(payload, plain[key], key)

    def disturb(self, rng, kills, packd, producers, world):
        killed = {"packd": 0, "producer": 0, "rank": 0}
        pause = threading.Event()
        for i in range(kills):
            for producer in producers:
                producer.release(producer.count * (i + 1) // (kills + 1))
            pause.wait(rng.random() * 0.15)
            who = rng.choice(["packd", "packd", "producer", "rank"])
            killed[who] += 1
            if who == "packd":
                packd.kill()
                packd.start()
            elif who == "producer":
                rng.choice(producers).kill()
            else:
                world.kill(rng)
        for producer in producers:
            producer.release(producer.count)
        return killed

    def check_conserved(self, rows, parts):
        """Each sample is in exactly one place, with its tokens; parts of a split one overlap by one token."""
        whole = {}
        for stream, seq, part in sorted(parts):
            self.assertEqual(len(parts[stream, seq, part]), 1, (stream, seq, part))
            tokens = parts[stream, seq, part][0]
            if part > 0:
                self.assertEqual(whole[stream, seq][-1], tokens[0])
            whole.setdefault((stream, seq), []).extend(tokens[1:] if part > 0 else tokens)
        expected = {(stream, seq): tokens for stream, samples in zip(STREAMS, rows) for seq, tokens in enumerate(samples)}
        self.assertEqual(set(whole), set(expected))
        for key, tokens in expected.items():
            self.assertEqual(whole[key], tokens, key)

    def test_process(self):
        self.run_one("process", KILLS // 2, SEED)

    def test_fsync(self):
        self.run_one("fsync", KILLS - KILLS // 2, SEED + 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["produce"]:
        produce(*sys.argv[2:])
    else:
        unittest.main()
