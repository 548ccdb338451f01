"""packctl log: a data directory beside a running daemon and without one; damage is found; a copy is a log of its own."""

import json
import os
import random
import shutil
import subprocess
import unittest

import harness
import peer


class LogTest(unittest.TestCase):
    def log(self, *arguments, code=0):
        done = subprocess.run([harness.PACKCTL, "--json", "log", *arguments], text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def push(self, address, stream, count, seed):
        rng = random.Random(seed)
        push = peer.Push(address, stream=stream)
        push.welcome()
        for _ in range(count // 50):
            push.block([[rng.randrange(1, 1000) for _ in range(rng.randrange(1, 64))] for _ in range(50)])
        push.wait_durable(count)
        push.close()

    def payloads(self, address):
        fetch = peer.Fetch(address, peer.open_job(address, job="look", kind=peer.pb.JOB_READER, world_token="w"), job="look", last_step=40)
        return [batch.payload for batch in fetch.all()]

    def test_inspect(self):
        with harness.Daemon() as packd:
            data = os.path.join(packd.directory, "data")
            self.push(packd.address, "a", 2000, 1)
            [found], _ = self.log("verify", data)  # beside the running daemon
            self.assertEqual((found["clean"], found["samples"], found["blocks"], found["damaged"]), (True, 2000, 40, 0))
            self.assertGreater(found["packs"], 100)
            [stat], _ = self.log("stat", data)
            self.assertEqual(stat["log_id"], packd.status()["log_id"])
            self.assertEqual(stat["tables"]["plans"]["entries"], found["packs"])
            records, _ = self.log("ls", data)
            self.assertEqual(sum(record["type"] == "BLOCK" for record in records), 40)
            self.assertEqual([record["position"] for record in records], sorted(record["position"] for record in records))
            copy = os.path.join(packd.directory, "copy")
            self.log("copy", data, copy)
            expected = self.payloads(packd.address)
            self.check_copy(copy, expected)
            packd.stop()
            self.check_damage(data)
            packd.start()

    def check_copy(self, copy, expected):
        [found], _ = self.log("verify", copy)
        self.assertEqual((found["clean"], found["samples"]), (True, 2000))
        directory = harness.scratch()
        shutil.move(copy, os.path.join(directory, "data"))
        with harness.Daemon(directory=directory) as packd:
            self.assertEqual(self.payloads(packd.address), expected)

    def check_damage(self, data):
        """One byte of one sample, in a copy of the file."""
        damaged = harness.scratch()
        with open(os.path.join(data, "data.mdb"), "rb") as file:
            content = bytearray(file.read())
        tokens = random.Random(1)
        first = [tokens.randrange(1, 1000) for _ in range(tokens.randrange(1, 64))]
        needle = b"".join(token.to_bytes(4, "little") for token in first)
        place = content.find(needle)
        self.assertGreater(place, 0)
        while place >= 0:  # pages no longer used may hold it, too
            content[place] ^= 1
            place = content.find(needle, place)
        with open(os.path.join(damaged, "data.mdb"), "wb") as file:
            file.write(content)
        [found], text = self.log("verify", damaged, code=5)
        self.assertEqual((found["clean"], found["damaged"]), (False, 1))
        self.assertIn("sample 0 of stream", text)
        shutil.rmtree(damaged)
        self.log("stat", "/nowhere", code=3)


if __name__ == "__main__":
    unittest.main()
