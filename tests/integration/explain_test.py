"""packctl explain: why a pack is no fuller, as the planner knew it when it made the pack; the same after a kill."""

import json
import os
import re
import subprocess
import unittest

import harness
import peer
from peer import pb

FEED = {"seq_len": 64, "window": 8}
FEEDS = [{**FEED, "name": "default"}, {**FEED, "name": "capped", "max_segments": 2}, {**FEED, "name": "order", "strategy": "sequential"}]
WORDS = {pb.PACK_EXACT: "full", pb.PACK_BEST: "best fit of the window", pb.PACK_FLUSH: "short: flush", pb.PACK_END: "short: the feed ended",
         pb.PACK_CAPPED: "most segments or patches (2 segments)", pb.PACK_SEQUENTIAL: "closed by order"}


class ExplainTest(unittest.TestCase):
    def push(self, packd, feed, lengths):
        push = peer.Push(packd.address, stream="of-" + feed, feed=feed)
        first = push.welcome().next_seq
        push.block([[1] * n for n in lengths])
        push.wait_durable(first + len(lengths))
        push.close()

    def planned(self, packd, feed, count):
        def packs():
            return next(f for f in peer.admin(packd.address, "Status", pb.StatusRequest(feed=feed)).feeds if f.name == feed).planned_packs

        harness.wait_for(f"{count} packs of {feed}", lambda: packs() == count)

    def ways(self, packd, feed, count):
        """(way, record) of the first packs."""
        found = []
        for step in range(count):
            pack, = peer.admin(packd.address, "Explain", pb.ExplainRequest(feed=feed, job="j", step=step)).packs
            self.assertEqual(pack.pack, step)
            found.append((pack.way, pack.record))
        return found

    def check_words(self, packd, feed, ways):
        for step in {way: step for step, (way, _) in enumerate(ways)}.values():
            arguments = ("explain", "--feed", feed, "--job", "j", "--step", step)
            words = packd.packctl(*arguments).stdout
            self.assertRegex(words, rf"(?m)^  pack {step}  .*  {re.escape(WORDS[ways[step][0]])}  \d+ tokens")
            raw, = json.loads(packd.packctl("--json", *arguments).stdout)["packs"]
            self.assertEqual((raw["way"], int(raw["record"])), (pb.PackWay.Name(ways[step][0]), ways[step][1]))

    def test_ways(self):
        with harness.Daemon(feeds=FEEDS) as packd:
            for feed in ("default", "capped", "order"):
                peer.open_job(packd.address, job="j", feed=feed)
            self.push(packd, "default", [40] * 20)
            self.planned(packd, "default", 13)
            flush = peer.admin(packd.address, "Flush", pb.FlushRequest(feed="default", all=True)).record
            self.planned(packd, "default", 20)
            self.push(packd, "default", [64] * 2 + [40] * 10)
            end = peer.end_feed(packd.address).record
            self.push(packd, "capped", [10] * 20)
            self.push(packd, "order", [40] * 12)
            for feed in ("capped", "order"):
                peer.end_feed(packd.address, feed)
            for feed, count in (("default", 32), ("capped", 10), ("order", 12)):
                self.planned(packd, feed, count)
            self.check_all(packd, flush, end)
            packd.kill()
            packd.start()
            self.check_all(packd, flush, end)
            packd.stop()
            data = os.path.join(packd.directory, "data")
            found = subprocess.run([harness.PACKCTL, "log", "verify", data], capture_output=True, text=True, timeout=harness.DEADLINE_S)
            self.assertEqual(found.returncode, 0, found.stdout + found.stderr)
            packd.start()

    def check_all(self, packd, flush, end):
        ways = self.ways(packd, "default", 32)
        names = [way for way, _ in ways]
        self.assertEqual(names[:20], [pb.PACK_BEST] * 13 + [pb.PACK_FLUSH] * 7)
        self.assertEqual(sorted(names[20:]), sorted([pb.PACK_EXACT] * 2 + [pb.PACK_BEST] * 3 + [pb.PACK_END] * 7))
        self.assertEqual(names[25:], [pb.PACK_END] * 7)
        for way, record in ways:
            if way == pb.PACK_FLUSH:
                self.assertEqual(record, flush)
            elif way == pb.PACK_END:
                self.assertEqual(record, end)
            else:
                self.assertGreater(record, 0)
                self.assertLess(record, end)
        self.check_words(packd, "default", ways)
        capped, order = self.ways(packd, "capped", 10), self.ways(packd, "order", 12)
        self.assertEqual([way for way, _ in capped], [pb.PACK_CAPPED] * 10)
        self.check_words(packd, "capped", capped)
        # The last one is closed by the end: there is nothing behind it.
        self.assertEqual([way for way, _ in order], [pb.PACK_SEQUENTIAL] * 11 + [pb.PACK_END])
        self.check_words(packd, "order", order)


if __name__ == "__main__":
    unittest.main()
