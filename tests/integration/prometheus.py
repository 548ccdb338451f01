"""A real Prometheus for a test: started on a free port over given targets and rendered copies of the rules, asked over its API."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.parse
import urllib.request

import yaml

import harness

RULES = "deploy/prometheus/rules.yaml"
DASHBOARD = "deploy/grafana/packd.json"
SCRAPE_S = 0.1


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def shortened(expression, window_s):
    """The expression with every range of minutes or hours cut to the window, every offset to two seconds."""
    expression = re.sub(r"offset \d+[mh]", "offset 2s", expression)
    return re.sub(r"\[\d+[mh]\]", f"[{window_s}s]", expression)


def rule_groups():
    with open(RULES) as file:
        return yaml.safe_load(file)["groups"]


def alerts():
    """{name: expression} of every alert as it is shipped."""
    return {rule["alert"]: rule["expr"] for group in rule_groups() for rule in group["rules"] if "alert" in rule}


def records():
    """{name: expression} of every recording rule."""
    return {rule["record"]: rule["expr"] for group in rule_groups() for rule in group["rules"] if "record" in rule}


def panel_expressions():
    """{(panel, refId): expression} of the dashboard."""
    with open(DASHBOARD) as file:
        dashboard = json.load(file)
    return {(panel["title"], target["refId"]): target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])}


class Prometheus:
    """with Prometheus({"packd": [address, ...]}, window_s) as prometheus: prometheus.query(...)"""

    def __init__(self, jobs, window_s, scrape_s=SCRAPE_S):
        self.directory = harness.scratch()
        self.jobs = jobs
        self.window_s = window_s
        self.scrape_s = scrape_s
        self.process = None

    def configure(self):
        groups = rule_groups()
        for group in groups:
            group["interval"] = "500ms"
            for rule in group["rules"]:
                rule["expr"] = shortened(rule["expr"], self.window_s)
                if "for" in rule:
                    rule["for"] = "500ms"
        interval = f"{int(self.scrape_s * 1000)}ms"
        config = {"global": {"scrape_interval": interval, "scrape_timeout": interval if self.scrape_s >= 1 else "100ms",
                             "evaluation_interval": "500ms"},
                  "rule_files": ["rules.yaml"],
                  "scrape_configs": [{"job_name": job, "static_configs": [{"targets": targets}]} for job, targets in self.jobs.items()]}
        for name, content in (("rules.yaml", {"groups": groups}), ("prometheus.yaml", config)):
            with open(os.path.join(self.directory, name), "w") as file:
                yaml.safe_dump(content, file)

    def launch(self):
        self.address = f"127.0.0.1:{free_port()}"
        with open(os.path.join(self.directory, "log"), "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", "--config.file=" + os.path.join(self.directory, "prometheus.yaml"), "--web.listen-address=" + self.address,
                 "--storage.tsdb.path=" + os.path.join(self.directory, "data"), "--log.level=warn"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory)

    def __enter__(self):
        self.configure()
        self.launch()
        for _ in range(5):  # somebody else may have taken the port meanwhile
            harness.wait_for("Prometheus is ready", lambda: self.is_ready() or self.process.poll() is not None)
            if self.process.poll() is None:
                return self
            self.launch()
        raise AssertionError(self.log())

    def __exit__(self, kind, value, trace):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if kind is not None:
            print(self.log())

    def log(self):
        with open(os.path.join(self.directory, "log"), errors="replace") as file:
            return file.read()

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2) as reply:
                return reply.status == 200
        except OSError:
            return False

    def api(self, path, **parameters):
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression, time=None):
        """{((label, value), ...): number} of an instant query, without the name and the scrape's labels."""
        parameters = {"query": expression} if time is None else {"query": expression, "time": f"{time:.3f}"}
        data = self.api("query", **parameters)
        assert data["resultType"] == "vector", data
        out = {}
        for sample in data["result"]:
            labels = tuple(sorted((k, v) for k, v in sample["metric"].items() if k not in ("__name__", "job", "instance")))
            assert labels not in out, (expression, sample)
            out[labels] = float(sample["value"][1])
        return out

    def firing(self):
        """{(alert, instance)} of what fires now."""
        return {(alert["labels"]["alertname"], alert["labels"].get("instance", "")) for alert in self.api("alerts")["alerts"]
                if alert["state"] == "firing"}
