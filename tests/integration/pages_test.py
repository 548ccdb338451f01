"""A status that does not fit into one message comes in pages; packctl and libpackd put them together."""

import json
import os
import subprocess
import unittest

import grpc

import harness
import peer
from fake_server import Fake
from peer import pb


class PagesTest(unittest.TestCase):
    """None of it is left out, none told twice."""

    def pages(self, packd, **asked):
        """[StatusResponse], until nothing is left."""
        replies = [peer.admin(packd.address, "Status", pb.StatusRequest(**asked))]
        while replies[-1].next_page:
            replies.append(peer.admin(packd.address, "Status", pb.StatusRequest(page=replies[-1].next_page, **asked)))
        return replies

    def listed(self, replies):
        """Of pages or one answer: feeds in full, then (feed, job) in their order."""
        feeds = [feed for reply in replies for feed in reply.feeds]
        return [f.name for f in feeds if f.config_digest], [(f.name, j.name, len(j.ranks)) for f in feeds for j in f.jobs]

    def test_pages(self):
        feeds = [{"name": name, "seq_len": 64} for name in ("a", "b", "c")]
        with harness.Daemon(feeds=feeds) as packd:
            for feed, count in (("a", 5), ("c", 3)):
                for i in range(count):
                    for rank in range(i + 1):
                        peer.open_job(packd.address, job=f"{9 - i}", feed=feed, dp_size=5, dp_rank=rank, client="c" * 255)
            whole, = self.pages(packd)
            jobs = [("a", f"{9 - i}", i + 1) for i in range(5)] + [("c", f"{9 - i}", i + 1) for i in range(3)]
            self.assertEqual(self.listed([whole]), (["a", "b", "c"], jobs))
            self.assertEqual(len(self.pages(packd, max_bytes=1)), 3 + len(jobs))  # one feed or job each
            for most in (1, 1000, 2500, 4000, whole.ByteSize() // 2, whole.ByteSize() + 500, 1 << 30):
                replies = self.pages(packd, max_bytes=most)
                self.assertEqual(self.listed(replies), (["a", "b", "c"], jobs), most)
                if most >= 2500:
                    self.assertLessEqual(max(reply.ByteSize() for reply in replies), most + 100)
            self.assertEqual(self.listed(self.pages(packd, feed="c", job="8", max_bytes=1)), (["c"], [("c", "8", 2)]))
            # a job that is deleted between two pages takes no other along
            first = peer.admin(packd.address, "Status", pb.StatusRequest(feed="c", max_bytes=1))
            second = peer.admin(packd.address, "Status", pb.StatusRequest(feed="c", max_bytes=1, page=first.next_page))
            peer.admin(packd.address, "DeleteJob", pb.DeleteJobRequest(feed="c", job="8"))
            third = peer.admin(packd.address, "Status", pb.StatusRequest(feed="c", max_bytes=1, page=second.next_page))
            self.assertEqual([self.listed([reply])[1] for reply in (first, second, third)], [[], [("c", "9", 1)], [("c", "7", 3)]])
            for page, feed in (("q", ""), ("a/", ""), ("/1", ""), ("a/x", ""), ("a/-1", ""), ("a/1x", ""), ("a/4294967296", ""),
                               ("a" * 300, ""), ("a/1", "c")):
                with self.assertRaises(grpc.RpcError) as caught:
                    peer.admin(packd.address, "Status", pb.StatusRequest(page=page, feed=feed))
                self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertEqual(peer.error_detail(caught.exception).reason, "BAD_RANGE")

    def test_large(self):
        """Jobs of 256 ranks with the longest names: above 2 MiB in one answer; with PACKD_FULL above 4 MiB, in two."""
        count = 90 if os.environ.get("PACKD_FULL") == "1" else 32
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 64}]) as packd, peer.channel(packd.address) as channel:
            stub = peer.rpc.FeedStub(channel)
            for i in range(count):
                calls = [stub.OpenJob.future(pb.OpenJobRequest(job=f"{i:064d}", dp_size=256, rows=1, dp_rank=rank, client="c" * 255),
                                             timeout=peer.CALL_S) for rank in range(256)]
                for call in calls:
                    call.result()
            replies = self.pages(packd)
            self.assertEqual(self.listed(replies), (["default"], [("default", f"{i:064d}", 256) for i in range(count)]))
            sizes = [reply.ByteSize() for reply in replies]
            self.assertGreater(sum(sizes), count * 68_000)
            self.assertLessEqual(max(sizes), 4 << 20)
            self.assertEqual(len(replies), 1 + (count == 90))
            self.assertEqual(len(packd.status()["feeds"][0]["jobs"]), count)

    def test_packctl_puts_pages_together(self):
        def page(next_page, **feeds):
            return pb.StatusResponse(ready=True, next_page=next_page, feeds=[
                pb.FeedStatus(name=name, streams_total=9, jobs=[pb.JobStatus(name=job) for job in jobs]) for name, jobs in feeds.items()])

        fake = Fake().start()
        self.addCleanup(fake.stop)

        def packctl(code, *arguments):
            done = subprocess.run([harness.PACKCTL, "--server", fake.address, *arguments], text=True, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return done.stdout + done.stderr

        fake.status_pages = {"": page("b/7", a=[], b=["x", "y"]), "b/7": page("c", b=["z"]), "c": page("", c=["u"], d=[])}
        status = json.loads(packctl(0, "--json", "status", "--after", "s"))
        self.assertEqual([(feed["name"], [job["name"] for job in feed["jobs"]]) for feed in status["feeds"]],
                         [("a", []), ("b", ["x", "y", "z"]), ("c", ["u"]), ("d", [])])
        self.assertEqual(status["next_page"], "")
        self.assertEqual([(request.page, request.streams_after) for request in fake.status_asked], [("", "s"), ("b/7", "s"), ("c", "s")])
        text = packctl(0, "status")
        for name in ("feed a", "feed b", "feed c", "feed d", " x ", " y ", " z ", " u "):
            self.assertEqual(text.count(name), 1, text)
        fake.status_pages["c"] = page("c")
        self.assertIn("more than 128 pages", packctl(1, "status"))


if __name__ == "__main__":
    unittest.main()
