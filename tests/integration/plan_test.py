"""packctl plan over real length lists, JSON lines and broken input; no server runs."""

import collections
import json
import os
import subprocess
import unittest

from harness import PACKCTL, TOP, scratch

DATA = os.path.join(TOP, "tests", "data")
STRATEGIES = ["none", "sequential", "best_fit", "ffd", "bfd", "exact"]


def lengths_of(name):
    with open(os.path.join(DATA, name + ".lengths.txt")) as file:
        return [int(line) for line in file]


def plan(*arguments, stdin=None, expect=0):
    done = subprocess.run([PACKCTL, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def plan_json(name, *arguments, **options):
    return json.loads(plan("plan", "--json", *arguments, name, **options).stdout)


def data(name):
    return os.path.join(DATA, name + ".lengths.txt")


class Plan(unittest.TestCase):
    def setUp(self):
        self.directory = scratch()

    def path(self, name, text=None):
        path = os.path.join(self.directory, name)
        if text is not None:
            with open(path, "w") as file:
                file.write(text)
        return path

    def places(self, path):
        with open(path) as file:
            self.assertEqual(file.readline(), "pack\tsample\tpart\toffset\tlength\n")
            return [tuple(map(int, line.split("\t"))) for line in file]

    def test_a_negative_length_is_refused(self):
        done = plan("plan", self.path("negative.txt", "-5\n3\n"), expect=3)
        self.assertRegex(done.stderr, r'negative.txt:1: found "-5", expected a length from 0')

    def test_reference_figures(self):
        lengths = lengths_of("seed_packing")
        for strategy in STRATEGIES:
            assign = self.path(strategy + ".tsv")
            report = plan_json(data("seed_packing"), "--seq-len", 4096, "--strategy", strategy, "--assign", assign)
            rows = report["strategies"]
            self.assertEqual(list(rows), STRATEGIES)
            self.assertIn(rows["ffd"]["packs"], (210, 211))
            self.assertLessEqual(rows["exact"]["packs"], rows["ffd"]["packs"])
            self.assertEqual(report["lower_bound"], 210)
            self.assertAlmostEqual(rows["exact"]["padding_before"], 0.895, delta=0.0005)
            self.assertLess(rows["exact"]["padding_after"], 0.006)
            self.assertLess(rows["ffd"]["padding_after"], 0.006)
            used, got = collections.Counter(), collections.Counter()
            for pack, sample, part, offset, length in self.places(assign):
                self.assertEqual((part, offset), (0, 0))
                used[pack] += length
                got[sample] += length
            self.assertEqual([got[i] for i in range(len(lengths))], lengths)
            self.assertEqual(sum(used.values()), sum(lengths))
            self.assertEqual(sorted(used), list(range(rows[strategy]["packs"])))
            self.assertLessEqual(max(used.values()), 4096)

    def test_regimes(self):
        low, high = plan_json(data("seed_low_padding")), plan_json(data("seed_high_padding"))
        for report, padding in (low, 0.023), (high, 0.899):
            self.assertAlmostEqual(report["strategies"]["exact"]["padding_before"], padding, delta=0.0005)
            self.assertAlmostEqual(report["varlen_over_padded"]["linear"], padding, delta=0.02)
        self.assertAlmostEqual(high["varlen_over_padded"]["quadratic"], 0.9895, delta=0.0005)
        self.assertGreater(high["strategies"]["exact"]["saving"]["quadratic"], 0.899)
        self.assertEqual(high["recommendation"], "pack")
        self.assertEqual(low["recommendation"], "do not pack")
        self.assertLess(low["gain"], 0.02)

    def test_gain_counts_for_the_model(self):
        """4 % of attention is worth a lot to a model that does little else."""
        report = plan_json(data("seed_low_padding"), "--alpha", 0, "--beta", 1)
        self.assertEqual((report["model"]["regime"], report["recommendation"]), ("quadratic", "pack"))
        report = plan_json(data("seed_low_padding"), "--hidden", 4096, "--layers", 32)
        self.assertEqual((report["model"]["alpha"], report["model"]["beta"]), (24576, 1))
        self.assertEqual(report["model"]["regime"], "linear")
        self.assertEqual(report["model"]["operations_padded"], 32 * 256 * (24 * 4096**2 * 4096 + 4 * 4096 * 4096**2))
        self.assertEqual(plan_json(data("seed_packing"), "--hidden", 512, "--seq-len", 8192)["model"]["regime"], "quadratic")

    def test_views_from_spans(self):
        """Half of the tokens are visual, half of these are of one view: without it 43.75 % of attention is gone."""
        spans = [{"view": "left", "offset": 0, "length": 16}, {"view": "right", "offset": 20, "length": 16}]
        path = self.path("robot.jsonl", (json.dumps({"tokens": [1] * 64, "spans": spans}) + "\n") * 100)
        report = plan_json(path, "--drop-view", "right", "--drop-view", "rihgt")
        self.assertEqual([view["cut"]["quadratic"] for view in report["views"]], [0.4375, 0])
        self.assertEqual(report["views"][0]["tokens"], 4800)
        self.assertIn("no sample has a span of this view", plan("plan", path, "--drop-view", "rihgt").stderr)

    def test_views(self):
        path = self.path("views.txt", "".join(f"{4 * n}\n" for n in range(1, 500)))
        report = plan_json(path, "--drop-view", "wrist=25%", "--drop-view", "base=12.5%", "--drop-view", "one=1")
        wrist, base, one = report["views"]
        self.assertEqual((wrist["name"], base["name"]), ("wrist", "base"))
        self.assertEqual((wrist["cut"]["linear"], wrist["cut"]["quadratic"]), (0.25, 0.4375))
        self.assertAlmostEqual(base["cut"]["quadratic"], 1 - 0.875**2, delta=0.001)
        self.assertEqual(one["tokens"], report["tokens"] - report["samples"])

    def test_over_length(self):
        path = self.path("over.txt", "4096\n4097\n10\n")
        done = plan("plan", "--json", path)
        report = json.loads(done.stdout)
        self.assertEqual((report["rejected_samples"], report["parts"], report["served_tokens"]), (1, 2, 4106))
        self.assertIn("4096", done.stderr)
        assign = self.path("split.tsv")
        report = plan_json(path, "--over-length", "split", "--assign", assign)
        self.assertEqual((report["rejected_samples"], report["split_samples"]), (0, 1))
        self.assertEqual(sorted(place[1:] for place in self.places(assign)),
                         [(0, 0, 0, 4096), (1, 0, 0, 4096), (1, 1, 4095, 2), (2, 0, 0, 10)])

    def test_nothing_fits(self):
        done = plan("plan", self.path("huge.txt", "524288\n600000\n"), expect=1)
        self.assertIn("no sample fits into seq_len 4096: there is nothing to plan", done.stderr)
        self.assertNotIn("do not pack", done.stdout)

    def test_balance(self):
        path = self.path("law.txt", "".join(f"{1 + (i * 7919 + i * i * 31) % 97 * (i % 13) * 3}\n" for i in range(20000)))
        report = plan_json(path, "--dp-size", 8, "--rows", 2, "--beta", 1, "--alpha", 0)
        imbalance = report["imbalance"]
        self.assertEqual(imbalance["steps"], report["strategies"]["exact"]["packs"] // 16)
        self.assertLess(imbalance["cost"]["micro_step"], imbalance["off"]["micro_step"])
        self.assertIsNone(plan_json(path, "--dp-size", 1 << 20)["imbalance"]["off"])

    def test_what_push_accepts(self):
        records = [{"tokens": list(range(n))} for n in (5, 9, 4000)]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        texts = self.path("texts.jsonl", '{"text": "abc"}\n{"text": ""}\n')
        for report in (plan_json(self.path("a.jsonl", lines)), plan_json(self.path("a.json", json.dumps(records))),
                       plan_json("-", stdin=lines)):
            self.assertEqual((report["samples"], report["tokens"], report["longest"]), (3, 4014, 4000))
        self.assertEqual(plan_json("-", stdin="5\n\n# a comment\n 7 \n0\n")["tokens"], 12)
        report = plan_json(texts)
        self.assertEqual((report["samples"], report["tokens"], report["empty_samples"]), (1, 3, 1))
        os.mkdir(self.path("dir"))
        self.path("dir/one.txt", "five5")
        self.path("dir/two.txt", "12345678")
        report = plan_json(self.path("dir"))
        self.assertEqual((report["samples"], report["tokens"]), (2, 13))
        text = self.path("prose.txt", "not a number\n")
        self.assertEqual(plan_json(text)["tokens"], 13)
        done = plan("plan", "--lengths", text, expect=3)
        self.assertIn("prose.txt:1: found \"not a number\"", done.stderr)

    def test_bad_input(self):
        for text in ("5\nfive\n", "5\n-1\n", "5\n1.5\n", "5\n99999999999\n", "5 6\n7\nx\n", "1\n" + "9" * 60 + "\n"):
            done = plan("plan", self.path("bad.txt", text), "--lengths", "--assign", self.path("none.tsv"), expect=3)
            self.assertRegex(done.stderr, r"bad.txt:[12]: found \".*\", expected a length")
            self.assertEqual(done.stdout, "")
        self.assertFalse(os.path.exists(self.path("none.tsv")))
        self.assertIn("no samples", plan("plan", self.path("empty.txt", ""), expect=3).stderr)
        plan("plan", self.path("missing.txt"), expect=3)
        plan("plan", data("seed_packing"), "--assign", self.path("no/such/dir"), expect=3)
        plan("plan", data("seed_packing"), "--assign", "/dev/full", expect=3)
        for arguments in (["--seq-len", "0"], ["--align", "3"], ["--strategy", "magic"], ["--drop-view", "x=1x"],
                          ["--drop-view", "x=0%"], ["--drop-view", "x=101%"], ["--drop-view", "x=1e9%"], ["--layers", "3"],
                          ["--hidden", "64", "--beta", "2"], ["--alpha", "0", "--beta", "0"], ["--nonsense"],
                          ["--dp-size", 1 << 20, "--rows", 1 << 20]):
            plan("plan", *arguments, data("seed_packing"), expect=2)
        plan("plan", expect=2)

    def test_page_for_people(self):
        done = plan("plan", data("seed_packing"), "--drop-view", "wrist=25%", "--hidden", 4096, "--layers", 2)
        self.assertNotIn("\033", done.stdout)
        for part in ("2,000 samples", "no packing takes fewer than 210 packs", "89.500 %", "linear regime", "###",
                     "with balance: cost", "without view wrist", "suggested: seq_len", "pack: "):
            self.assertIn(part, done.stdout)
        self.assertIn("do not pack", plan("plan", data("seed_low_padding")).stdout)
        plain = subprocess.run(["script", "-qec", f"{PACKCTL} plan {data('seed_packing')}", "/dev/null"], capture_output=True,
                               text=True, env={**os.environ, "TERM": "xterm"}) if os.path.exists("/usr/bin/script") else None
        if plain:
            self.assertIn("\033[1m", plain.stdout)

    def test_same_answer_twice(self):
        self.assertEqual(plan("plan", "--json", data("debian_docs"), "--over-length", "split").stdout,
                         plan("plan", "--json", data("debian_docs"), "--over-length", "split").stdout)


if __name__ == "__main__":
    unittest.main()
