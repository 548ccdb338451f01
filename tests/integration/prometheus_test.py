"""Metrics as Prometheus sees them: the exposition through the official parser and promtool; then a real Prometheus that scrapes real
daemons under load, in which every expression of every rule and dashboard panel gives what the test itself has counted, and alerts fire.
"""

import collections
import json
import math
import os
import random
import re
import socket
import subprocess
import threading
import time
import unittest

import harness
import peer
import prometheus

WINDOW_S = 20
SLACK = 0.02
FAULTY = os.path.join(harness.TOP, "server", "packd_faulty")
MIX = {"name": "mix", "seq_len": 256, "window": 32, "over_length": "split", "sources": {"web": {"weight": 3}, "code": {"weight": 1}},
       "jobs": [{"name": "train"}]}
CUT = {"name": "cut", "seq_len": 128, "window": 8, "over_length": "keep_head", "strategy": "sequential"}


def buckets(raw, name):
    """[(upper bound, cumulative count)] of a histogram in /metrics."""
    found = {}
    for key, value in raw.items():
        match = re.fullmatch(name + r'_bucket\{(?:.*,)?le="([^"]+)"\}', key)
        if match:
            bound = math.inf if match[1] == "+Inf" else float(match[1])
            found[bound] = found.get(bound, 0) + value
    return sorted(found.items())


def quantile(q, found):
    """As Prometheus defines histogram_quantile."""
    total = found[-1][1]
    if total == 0:
        return math.nan
    lower, below = 0.0, 0.0
    for bound, count in found:
        if count >= q * total:
            return lower if bound == math.inf else lower + (bound - lower) * (q * total - below) / (count - below)
        lower, below = bound, count


class Load:
    """What the good daemon is given and gives back, counted by the test."""

    def __init__(self, packd):
        self.packd = packd
        self.rng = random.Random(77)
        self.tokens = collections.Counter()   # by feed: pushed
        self.real = collections.Counter()     # by (feed, source)
        self.tail = collections.Counter()
        self.positions = collections.Counter()  # by feed
        self.rows = []                        # real / width
        self.packed = collections.Counter()
        self.padded = collections.Counter()
        self.cut = self.split = self.batches = 0

    def cost(self, n):
        return 24576 * n + n * n

    def push(self, feed, stream, source, lengths, repeat=0, empty=0):
        push = peer.Push(self.packd.address, feed=feed, stream=stream, source=source, producer='<script>alert("x")</script>')
        push.welcome()
        push.block([[1] * n for n in lengths])
        if repeat:
            push.block([[1] * n for n in lengths[-repeat:]], first_seq=push.next_seq - repeat)
        if empty:
            push.block([[]] * empty)
        push.wait_durable(push.next_seq)
        push.end_stream()
        push.close()
        self.tokens[feed] += sum(lengths)
        limit = MIX["seq_len"] if feed == "mix" else CUT["seq_len"]
        if feed == "cut":
            self.cut += sum(n > limit for n in lengths)

    def count(self, feed, batch):
        header, width = batch.header, batch.header.width
        cu, lens, index = batch["cu_seqlens"].tolist(), batch["seq_lens"].tolist(), batch["sample_index"].tolist()
        seq_len = MIX["seq_len"] if feed == "mix" else CUT["seq_len"]
        names = list(header.samples.sources)
        order = ["", "web", "code"]
        self.batches += 1
        for row in range(header.rows):
            by, used = collections.Counter(), 0
            for s, start in enumerate(cu[:-1]):
                if not row * width <= start < (row + 1) * width:
                    continue
                if index[s] < 0:
                    self.packed[feed] += self.cost(cu[s + 1] - start)
                    continue
                name = names[header.samples.source[index[s]]] if len(header.samples.source) else names[0]
                by["" if name == "default" else name] += lens[s]
                self.packed[feed] += self.cost(lens[s])
                self.padded[feed] += self.cost(seq_len)
                used += lens[s]
            upto = given = 0
            for name in order:
                if by[name]:
                    upto += by[name]
                    self.tail[feed, name] += (width - used) * upto // used - given
                    given = (width - used) * upto // used
                self.real[feed, name] += by[name]
            self.positions[feed] += width
            self.rows.append(used / width)

    def fetch(self, feed, steps, rows, accum):
        opened = peer.open_job(self.packd.address, feed=feed, rows=rows, accum=accum)
        fetch = peer.Fetch(self.packd.address, opened, feed=feed, last_step=steps - 1)
        for batch in fetch.all():
            self.count(feed, batch)
        fetch.outgoing.put(None)
        fetch.channel.close()

    def run(self):
        self.push("mix", "web-0", "web", [self.rng.randint(1, 400) for _ in range(500)], repeat=5)
        self.push("mix", "code-0", "code", [self.rng.randint(1, 400) for _ in range(300)], empty=3)
        self.push("cut", "c-0", "", [self.rng.randint(1, 300) for _ in range(150)])
        harness.wait_for("planning", lambda: all(int(f["planned_packs"]) > 20 for f in self.packd.status()["feeds"]))
        self.fetch("mix", 20, 2, 2)
        self.fetch("cut", 20, 1, 1)
        self.packd.packctl("commit", "--feed", "mix", "--job", "train", "--step", 11)
        self.committed_at = time.time()

    def real_of(self, feed):
        return sum(n for (f, _), n in self.real.items() if f == feed)


def feed(name):
    return (("feed", name),)


def job(name):
    return (("feed", name), ("job_name", "train"))


class Expected:
    """What every expression must give, from the load and the daemon's own words at the end."""

    def __init__(self, load, raw, status, at, cpu_s):
        self.load, self.raw, self.at, self.cpu_s = load, raw, at, cpu_s
        self.status = status
        self.feeds = {f["name"]: f for f in status["feeds"]}

    def per_s(self, amount):
        return amount / WINDOW_S

    def value(self, name):
        return sum(v for k, v in self.raw.items() if k == name or k.startswith(name + "{"))

    def by(self, name, *labels):
        """{labels: sum} of a family in /metrics."""
        found = collections.Counter()
        for key, value in self.raw.items():
            if key.startswith(name + "{"):
                have = dict(re.findall(r'(\w+)="([^"]*)"', key))
                found[tuple((label, have[label]) for label in sorted(labels) if label in have)] += value
        return dict(found)

    def rates(self, name, *labels, positive=False):
        return {k: self.per_s(v) for k, v in self.by(name, *labels).items() if v > 0 or not positive}

    def padding(self, name):
        return 1 - self.load.real_of(name) / self.load.positions[name]

    def quantile(self, q, name):
        return {(): quantile(q, buckets(self.raw, name))}

    def jobs(self, field):
        """Of every job that the daemon knows."""
        return {job(f["name"]): int(j.get(field, 0)) for f in self.status["feeds"] for j in f.get("jobs", [])}

    def next_steps(self, field):
        return {k: v + 1 for k, v in self.jobs(field).items()}

    def records(self):
        load = self.load
        names = ("mix", "cut")
        return {
            "packd:positions:rate5m": {feed(n): self.per_s(load.positions[n]) for n in names},
            "packd:real_tokens:rate5m": {feed(n): self.per_s(load.real_of(n)) for n in names},
            "packd:padding:ratio_rate5m": {feed(n): self.padding(n) for n in names},
            "packd:waiting_ranks:rate5m": {
                feed(n): self.per_s(sum(v for k, v in self.by("packd_serve_waited_seconds_total", "feed", "waits_for").items()
                                        if ("feed", n) in k and ("waits_for", "credit") not in k)) for n in names},
            "packd:compute_saved:ratio_rate5m": {feed(n): 1 - load.packed[n] / load.padded[n] for n in names},
        }

    def panels(self):
        load, names = self.load, ("mix", "cut")
        real, positions = sum(map(load.real_of, names)), sum(load.positions.values())
        sources = {(("feed", f),) + ((("source", s),) if s else ()): 1 - n / (n + load.tail[f, s]) for (f, s), n in load.real.items() if n}
        waited = self.rates("packd_serve_waited_seconds_total", "waits_for")
        log, memory = self.status["log"], self.status["memory"]
        full = sum(r > 0.999 for r in load.rows)
        stages = ("packd_ingest_append_duration_seconds", "packd_plan_duration_seconds", "packd_assemble_duration_seconds",
                  "packd_validation_duration_seconds", "packd_probe_duration_seconds", "packd_fetch_duration_seconds")
        oldest = {k: v for k, v in self.by("packd_window_oldest_sample_timestamp_seconds", "feed").items() if v > 0}
        return {
            ("Padding rate", "A"): {(): 1 - real / positions},
            ("Tokens served", "A"): {(): self.per_s(real)},
            ("Ranks waiting", "A"): {(): sum(v for k, v in waited.items() if k != (("waits_for", "credit"),))},
            ("Log used", "A"): {(): int(log["bytes"]) / int(log["max_bytes"])},
            ("Violations", "A"): {(): 0},
            ("Ready", "A"): {(): 1},
            ("Ready", "B"): {(): 0},
            ("Padding by feed", "A"): {feed(n): self.padding(n) for n in names},
            ("Padding by source", "A"): sources,
            ("Tokens in and out", "A"): {feed(n): self.per_s(load.tokens[n]) for n in names},
            ("Tokens in and out", "B"): {feed(n): self.per_s(load.real_of(n)) for n in names},
            ("Trainers wait for", "A"): waited,
            ("Producers wait for", "A"): self.rates("packd_ingest_throttled_seconds_total", "reason"),
            ("Wait of a trainer for a batch", "A"): self.quantile(0.5, "packd_serve_wait_seconds"),
            ("Wait of a trainer for a batch", "B"): self.quantile(0.99, "packd_serve_wait_seconds"),
            ("Calls and waiters", "A"): {(): 0},
            ("Calls and waiters", "B"): {(): 0},
            ("Calls and waiters", "C"): {(): 0},
            ("Calls and waiters", "D"): {(("job_name", "train"),): 0},
            ("Window", "A"): {feed(n): int(self.feeds[n].get("window_samples", 0)) for n in names},
            ("Window", "B"): {k: self.at - v for k, v in oldest.items()},
            ("Steps", "A"): self.next_steps("planned_step"),
            ("Steps", "B"): {job("mix"): 20, job("cut"): 20},
            ("Steps", "C"): {job("mix"): 12, job("cut"): 0},
            ("Steps planned ahead", "A"): {k: v - 20 for k, v in self.next_steps("planned_step").items()},
            ("Time since the last commit", "A"): {job("mix"): self.at - load.committed_at},
            ("Bytes of the log", "A"): {(): int(log["bytes"])},
            ("Bytes of the log", "B"): {(): int(log["max_bytes"])},
            ("Bytes of the log", "C"): {feed(n): int(self.feeds[n]["log_bytes"]) for n in names},
            ("What holds it", "A"): self.by("packd_feed_unplanned_bytes", "feed"),
            ("What holds it", "B"): self.jobs("bytes_held"),
            ("Commits", "A"): {(): self.per_s(self.value("packd_log_commits_total"))},
            ("Commits", "B"): self.quantile(0.99, "packd_log_commit_duration_seconds"),
            ("Batches checked", "A"): {(): self.per_s(load.batches)},
            ("Batches checked", "B"): self.rates("packd_validation_batches_total", "backend", "result", positive=True),
            ("Violations by rule", "A"): {},
            ("Violations by rule", "B"): {(): 0},
            ("Samples refused or changed", "A"): {(("reason", "EMPTY_SAMPLE"),): self.per_s(3)},
            ("Samples refused or changed", "B"): self.rates("packd_truncated_samples_total", "feed"),
            ("Samples refused or changed", "C"): self.rates("packd_split_samples_total", "feed"),
            ("Samples refused or changed", "D"): {feed("mix"): self.per_s(5), feed("cut"): 0},
            **{("Time of a stage, 99th percentile", "ABCDEF"[i]): self.quantile(0.99, stage) for i, stage in enumerate(stages)},
            ("Occupancy of a row", "A"): {(): sum(load.rows) / len(load.rows)},
            ("Occupancy of a row", "B"): {(): full / len(load.rows)},
            ("Compute saved", "A"): {feed(n): 1 - load.packed[n] / load.padded[n] for n in names},
            ("gRPC calls ended", "A"): self.rates("grpc_server_handled_total", "grpc_method", "grpc_code", positive=True),
            ("Memory", "A"): {(): self.value("packd_memory_anonymous_bytes")},
            ("Memory", "B"): {(): int(memory["batches_bytes"])},
            ("Memory", "C"): {(): 0},
            ("CPU", "A"): {(): self.per_s(self.cpu_s)},
        }


# Of what goes on while the test looks: the slack in the value itself.
MOVING = {("Window", "B"): 0.5, ("Time since the last commit", "A"): 0.5, ("CPU", "A"): 0.02}


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ExpositionTest(unittest.TestCase):
    def test_official_parsers_and_promtool(self):
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
        from prometheus_client.parser import text_string_to_metric_families as parse_text
        with harness.Daemon(feeds=[MIX, CUT]) as packd:
            plain = packd.http("/metrics")[1]
            opened = packd.http("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})[1]
            families = {family.name: family for family in parse_text(plain)}
            others = {family.name: family for family in parse_openmetrics(opened)}
            self.assertEqual(set(families), set(others))
            self.assertGreater(len(families), 80)
            for name, family in families.items():
                labels = [tuple(sorted(s.labels.items())) for s in family.samples]
                self.assertEqual(len(set(zip([s.name for s in family.samples], labels))), len(labels), name)
                for key in {k for pairs in labels for k, _ in pairs}:
                    self.assertNotIn(key, ("job", "instance"), f"{name}: the label is the scrape's own")
            done = subprocess.run(["promtool", "check", "metrics"], input=plain, capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            self.assertIn('packd_pack_tokens_total{feed="mix",kind="tail",source="code"} 0\n', plain)
            self.assertIn('packd_ingest_rejected_total{reason="OVER_LENGTH"} 0\n', plain)

    def test_every_metric_of_rules_and_dashboard_exists(self):
        with harness.Daemon(feeds=[MIX]) as packd:
            names = set(re.findall(r"^# TYPE (\S+)", packd.http("/metrics")[1], re.M))
        expressions = [*prometheus.panel_expressions().values(), *prometheus.alerts().values(), *prometheus.records().values()]
        for expression in expressions:
            for name in re.findall(r"\b(?:packd_|grpc_server_|process_)[a-z_]+", expression):
                self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name), names, expression)

    def test_rules_are_tested(self):
        done = subprocess.run(["promtool", "check", "rules", prometheus.RULES], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        path = "deploy/prometheus/rules_test.yaml"
        done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(path) as file:
            text = file.read()
        with open("docs/RUNBOOK.md") as file:
            runbook = file.read()
        for name in prometheus.alerts():
            self.assertIn(f"alertname: {name}\n        exp_alerts:\n          - ", text, f"{name} never fires in {path}")
            self.assertRegex(runbook, rf"(?m)^## {name}$")
        with open(prometheus.RULES) as file:
            anchors = re.findall(r"docs/RUNBOOK\.md#(\w+)", file.read())
        self.assertEqual(sorted(anchors), sorted(name.lower() for name in prometheus.alerts()))

    def test_dashboard_loads(self):
        with open(prometheus.DASHBOARD) as file:
            dashboard = json.load(file)
        self.assertGreaterEqual(dashboard["schemaVersion"], 36)
        variables = {v["name"] for v in dashboard["templating"]["list"]}
        self.assertGreaterEqual(variables, {"datasource", "feed", "job"})
        self.assertEqual(len({p["id"] for p in dashboard["panels"]}), len(dashboard["panels"]))
        placed = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & placed or at["x"] + at["w"] > 24, panel["title"])
            placed |= cells
            for used in re.findall(r"\$(\w+)", json.dumps(panel)):
                self.assertIn(used, variables | {"__rate_interval"}, panel["title"])


class Trouble:
    """Daemons to which everything happens that alerts are for."""

    def __init__(self):
        feeds = [{"name": "starve", "seq_len": 64, "window": 4, "jobs": [{"name": "train"}]},
                 {"name": "wide", "seq_len": 64, "window": 4, "strategy": "none"},
                 {"name": "full", "seq_len": 4096, "window": 8}]
        self.bad = harness.Daemon(feeds=feeds, extra={"log": {"max_bytes": "24MiB", "durability": "process"}, "limits": {"max_sample_bytes": "64KiB"},
                                                      "listen_health": ["127.0.0.1:0"],
                                                      "validate": {"backend": "off"}})
        self.faulty = harness.Daemon(program=FAULTY, environment={"PACKD_TEST_FAULT": "wrong total of tokens", "PACKD_TEST_FAULT_STEP": "1",
                                                                  "PACKD_TEST_FAULT_TIMES": "2"})
        self.open = []
        self.pushing = None
        self.background = []
        self.stop = threading.Event()

    def __enter__(self):
        self.bad.__enter__()
        self.faulty.__enter__()
        self.write_much()
        return self

    def push(self, packd, feed, samples, **hello):
        push = peer.Push(packd.address, feed=feed, stream="s-" + feed, **hello)
        push.welcome()
        push.block(samples)
        push.wait_durable(push.next_seq)
        self.open.append(push)
        return push

    def fetch(self, packd, feed, steps, **spec):
        fetch = peer.Fetch(packd.address, peer.open_job(packd.address, feed=feed, **spec), feed=feed)
        for _ in range(steps):
            fetch.next()
        self.open.append(fetch)
        return fetch

    def wait_on(self, fetch):
        """A rank that stands waiting until the test ends."""
        def rank():
            try:
                while not self.stop.is_set():
                    fetch.next()
            except (peer.grpc.RpcError, AttributeError):
                pass
        self.background.append(threading.Thread(target=rank, daemon=True))
        self.background[-1].start()

    def crowd(self):
        """More connections than the address for probes has places, until the test ends."""
        with open(self.bad.ports_path()) as file:
            host, _, port = json.load(file)["health"][0].rpartition(":")

        def knock():
            held = []
            while not self.stop.wait(0.1):
                held.append(socket.create_connection((host, int(port)), timeout=10))
                if len(held) > 40:
                    held.pop(0).close()
            for connection in held:
                connection.close()
        self.background.append(threading.Thread(target=knock, daemon=True))
        self.background[-1].start()

    def cause(self):
        self.crowd()
        self.push(self.bad, "starve", [[1] * 64] * 40 + [[]] * 20)
        self.wait_on(self.fetch(self.bad, "starve", 30))
        wide = self.push(self.bad, "wide", [[1] * 64] * 20)
        self.fetch(self.bad, "wide", 15)
        self.pushing = self.bad.start_packctl("push", "--feed", "full", "--stream", "much", os.path.join(self.bad.directory, "much.jsonl"))
        self.wait_on(self.fetch(self.bad, "full", 3))
        self.push(self.faulty, "default", [[1] * 60] * 80)
        try:
            self.fetch(self.faulty, "default", 3)
        except peer.grpc.RpcError:
            pass
        return wide

    def worsen(self, wide):
        wide.block([[1] * 16] * 60)
        wide.wait_durable(80)
        self.fetch(self.bad, "wide", 60)

    def write_much(self):
        with open(os.path.join(self.bad.directory, "much.jsonl"), "w") as file:
            sample = json.dumps({"tokens": [1] * 4096})
            for _ in range(1400):
                file.write(sample + "\n")

    def __exit__(self, kind, value, trace):
        self.stop.set()
        if self.pushing:
            self.pushing.kill()
            self.pushing.communicate()
        for call in self.open:
            call.outgoing.put(None)
            call.call.cancel()
            call.channel.close()
        for thread in self.background:
            thread.join(10)
        self.bad.__exit__(kind, value, trace)
        self.faulty.__exit__(kind, value, trace)


class PrometheusTest(unittest.TestCase):
    def compare(self, what, found, expected, slack=0.0):
        self.assertEqual(set(found), set(expected), what)
        for labels, value in expected.items():
            if math.isnan(value):
                self.assertTrue(math.isnan(found[labels]), (what, labels, found[labels]))
                continue
            self.assertLessEqual(abs(found[labels] - value), SLACK * abs(value) + slack + 1e-9,
                                 f"{what} {dict(labels)}: Prometheus says {found[labels]:g}, the load {value:g}")

    def instant(self, server, begun):
        """The time of the first scrape for which a window reaches back to just before the load; behind it nothing changes."""
        due = begun + WINDOW_S - 0.5
        harness.wait_for("a window that covers the load", lambda: time.time() > due + 0.3, WINDOW_S + 60)
        stamps = [at for at, _ in server.api("query", query=f"up[{WINDOW_S}s]", time=f"{due + 0.3:.3f}")["result"][0]["values"]]
        self.assertGreater(len(stamps), 20)
        return max(stamps) + 0.001

    def check_values(self, server, packd, expected, at):
        instance = re.escape(packd.http_address).replace("\\", "\\\\")

        def render(expression):
            for variable, value in (("$instance", instance), ("$feed", ".*"), ("$job", ".*"), ("$__rate_interval", f"{WINDOW_S}s")):
                expression = expression.replace(variable, value)
            return prometheus.shortened(expression, WINDOW_S)

        panels = expected.panels()
        expressions = prometheus.panel_expressions()
        self.assertEqual(set(panels), set(expressions), "every panel is in this test, and no other")
        for key, expression in expressions.items():
            self.compare(key, server.query(render(expression), at), panels[key], MOVING.get(key, 0))
        records = expected.records()
        self.assertEqual(set(records), set(prometheus.records()))
        for name, want in records.items():
            self.compare(name, server.query(f'{name}{{instance="{packd.http_address}"}}', at + 1), want)
        padded = {f for f in ("mix", "cut") if expected.padding(f) > 0.05}
        for name in prometheus.alerts():
            fired = {dict(labels).get("feed") for labels in
                     server.query(f'ALERTS{{alertname="{name}",alertstate="firing",instance="{packd.http_address}"}}', at)}
            self.assertEqual(fired, padded if name == "PackdPaddingHigh" else set(), f"{name}: the daemon is healthy, but for padding by design")

    def test_prometheus_agrees_with_the_load(self):
        gone = f"127.0.0.1:{prometheus.free_port()}"
        with harness.Daemon(feeds=[MIX, CUT]) as packd, Trouble() as trouble:
            targets = [packd.http_address, trouble.bad.http_address, trouble.faulty.http_address, gone]
            with prometheus.Prometheus({"central-packd": targets}, WINDOW_S) as server:
                harness.wait_for("the first scrapes", lambda: server.api("query", query="count(up == 1) == 3")["result"])
                load = Load(packd)
                cpu = cpu_seconds(packd.process.pid)
                begun = time.time()
                wide = trouble.cause()
                load.run()
                low = f'packd:padding:ratio_rate5m{{feed="wide",instance="{trouble.bad.http_address}"}}'
                harness.wait_for("padding that has been low for a while", lambda: server.api(
                    "query", query=f"count_over_time({low}[{WINDOW_S}s]) >= 7 and {low} < 0.01")["result"])
                trouble.worsen(wide)
                self.assertLess(time.time() - begun, WINDOW_S - 5, "the load takes longer than the window: this machine is too slow for it")
                seen = set()
                at = self.instant(server, begun)
                raw, cpu = packd.metrics(), cpu_seconds(packd.process.pid) - cpu
                self.check_values(server, packd, Expected(load, raw, packd.status(), at, cpu), at)
                wanted = {(name, {"PackdTargetDown": gone, "PackdValidationFailure": trouble.faulty.http_address,
                                  "PackdFeedHalted": trouble.faulty.http_address}.get(name, trouble.bad.http_address))
                          for name in prometheus.alerts()} - {("PackdPlannerSilent", trouble.bad.http_address)}

                def all_have_fired():
                    for sample in server.api("query", query=f'max_over_time(ALERTS{{alertstate="firing"}}[60s])')["result"]:
                        seen.add((sample["metric"]["alertname"], sample["metric"].get("instance", "")))
                    missing = wanted - seen
                    if missing == {not_ready}:  # what is throttled for lack of space must be seen before: draining is another reason
                        trouble.bad.packctl("drain")
                    return not missing
                not_ready = ("PackdNotReady", trouble.bad.http_address)
                try:
                    harness.wait_for("alerts", all_have_fired)
                except AssertionError:
                    self.fail(f"these have not fired: {sorted(wanted - seen)}")
                self.assertLessEqual({n for n, i in seen if i == packd.http_address}, {"PackdPaddingHigh"}, "the healthy daemon")


if __name__ == "__main__":
    unittest.main()
