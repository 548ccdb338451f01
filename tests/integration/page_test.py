"""The status page in a real browser: what it shows of data, of nothing, of a wait and of a halt; that texts stay texts; that it loads
nothing from elsewhere. Screenshots are kept where PACKD_SCREENSHOTS names a directory.
"""

import html.parser
import json
import os
import re
import shutil
import subprocess
import unittest

import harness
import peer
from peer import pb

FEED = {"name": "default", "seq_len": 128, "window": 8, "sources": {"web": {"weight": 2}, "code": {"weight": 1}}, "strategy": "sequential"}
EVIL = '<img src=x onerror="document.title=\'hit\'"></script><script>document.title="hit"</script>'
BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)


class Text(html.parser.HTMLParser):
    """The text of a page, without its scripts and styles; and its elements."""

    def __init__(self, page):
        super().__init__()
        self.text, self.hidden, self.tags, self.titles = [], 0, [], []
        self.feed(page)
        self.words = re.sub(r"\s+", " ", " ".join(self.text))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.hidden += tag in ("script", "style")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self.hidden:
            self.text.append(data)

    def of_class(self, name):
        return [a for _, a in self.tags if name in a.get("class", "").split()]


@unittest.skipUnless(BROWSER, "no Chromium")
class PageTest(unittest.TestCase):
    def browse(self, packd, name, size="1200,1500", dark=False):
        """The page after its script has run."""
        profile = harness.scratch()
        arguments = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--user-data-dir=" + profile, "--virtual-time-budget=3000", "--window-size=" + size,
                     "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")]
        address = f"http://{packd.http_address}/"
        done = subprocess.run([*arguments, "--dump-dom", address], capture_output=True, text=True, timeout=90)
        self.assertEqual(done.returncode, 0, done.stderr)
        if os.environ.get("PACKD_SCREENSHOTS"):
            path = os.path.join(os.environ["PACKD_SCREENSHOTS"], name + ".png")
            subprocess.run([*arguments, "--screenshot=" + path, address], capture_output=True, timeout=90, check=True)
        self.assertNotIn("hit", re.search(r"<title>(.*?)</title>", done.stdout).group(1))
        return Text(done.stdout)

    def push(self, packd, source, lengths, **hello):
        push = peer.Push(packd.address, stream=source + "-0", source=source, **hello)
        push.welcome()
        push.block([[1] * n for n in lengths])
        push.wait_durable(push.next_seq)
        return push

    def status(self, packd):
        return json.loads(packd.http("/status.json")[1])

    def test_a_log_that_is_replayed(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            self.push(packd, "web", [100] * 20).close()
            packd.stop()
            fifo = os.path.join(packd.directory, "hold")
            packd.spawn_held(fifo)
            page = self.browse(packd, "replaying")
            self.assertRegex(page.words, r"replaying .*, record (\d+) of \1")
            with open(fifo, "w"):
                packd.wait_listening()
            packd.wait_ready()

    def test_page_is_self_contained(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            status, page, headers = packd.http("/")
            self.assertEqual(status, 200)
            policy = headers["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertNotRegex(page, r"(?i)(src|href)\s*=|@import|https?://(?!www\.w3\.org/2000/svg)")
            self.assertEqual(packd.http("/status.json")[2]["Content-Type"], "application/json")
            self.assertEqual(packd.http("/", method="POST")[0], 405)

    def tokens(self, packd):
        """Real and all positions served, as /metrics has them."""
        sums = {k: v for k, v in packd.metrics().items() if k.startswith("packd_pack_tokens_total")}
        return sum(v for k, v in sums.items() if 'kind="real"' in k), sum(sums.values())

    def padding_agrees(self, packd):
        kept, served = self.tokens(packd)
        return abs(self.status(packd)["feeds"][0]["padding"]["all"] - (1 - kept / served)) < 0.02

    def test_empty_then_data_then_a_wait(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            empty = self.browse(packd, "empty")
            for words in ("ready", "Nothing has been delivered yet", "No job has been opened", "No producer has come yet"):
                self.assertIn(words, empty.words)
            web = self.push(packd, "web", [100, 20, 128, 60] * 20, producer=EVIL)
            code = self.push(packd, "code", [50] * 60, content_id=EVIL)
            opened = peer.open_job(packd.address, rows=2, client=EVIL)
            fetch = peer.Fetch(packd.address, opened)
            batches = [fetch.next() for _ in range(20)]
            real = sum(int((b["segment_ids"] > 0).sum()) for b in batches)
            harness.wait_for("the page's figures", lambda: len(self.status(packd)["feeds"][0]["rows"]) == 24
                             and self.status(packd)["feeds"][0]["jobs"])
            padding = self.status(packd)["feeds"][0]["padding"]
            self.assertEqual(padding["all"], padding["now"])
            kept, served = self.tokens(packd)
            self.assertGreaterEqual(kept, real)
            harness.wait_for("page and metrics agree", lambda: self.padding_agrees(packd))  # packs are delivered ahead meanwhile
            feed = self.status(packd)["feeds"][0]
            page = self.browse(packd, "data")
            self.assertEqual(len(page.of_class("row")), 24)
            self.assertIn("web", page.words)
            self.assertTrue(page.of_class("hatched"))
            for row in feed["rows"]:
                batch = next((b for b in batches if row["pack"] in b.header.packs), None)
                if batch is None:
                    continue
                at = list(batch.header.packs).index(row["pack"])
                self.assertEqual(sum(s[0] for s in row["segments"]), int((batch["segment_ids"][at] > 0).sum()))
            self.assertFalse([t for t, a in page.tags if t == "img" or "onerror" in a])
            self.assertTrue([a for _, a in page.tags if EVIL in a.get("title", "")], "a producer's text is shown as text")
            self.browse(packd, "narrow", size="400,2400")
            self.browse(packd, "dark", dark=True)
            while True:  # a rank that stands waiting
                message = fetch.next_message()
                if message.HasField("begin"):
                    fetch.receive(message.begin)
                elif message.HasField("waiting") and message.waiting.reason in (pb.WAIT_SAMPLES, pb.WAIT_LANE):
                    break
            harness.wait_for("the wait is seen", lambda: any(r["wait"] for j in self.status(packd)["feeds"][0]["jobs"] for r in j["ranks"]))
            waiting = self.browse(packd, "waiting")
            self.assertIn("Producers", waiting.words)
            self.assertIn("1 rank", waiting.words)
            top = packd.packctl("top", "--count", "1").stdout
            for words in ("waits", "padding", "train"):
                self.assertIn(words, top)
            for call in (fetch, web, code):
                call.close()


if __name__ == "__main__":
    unittest.main()
