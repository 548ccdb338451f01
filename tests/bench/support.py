"""What the sections of bench.py share: the two servers, processor time and memory of a process, rows of a table, budgets.

A section is a module with `measure(quick) -> dict`: it prints its table as it goes, figures beside ceilings first, and returns what belongs into the
JSON file; "budgets", if it is there, is a list of what budget() made.
"""

import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

BIN = os.environ.get("PACKD_BENCH_BIN", "bazel-bin")
TICK = os.sysconf("SC_CLK_TCK")
DEADLINE_S = 120
SHORT_AT_MOST = 0.2
median = statistics.median


def program(*path):
    return os.path.join(BIN, *path)


def say(*text):
    print(*text, flush=True)


def budget(what, figure, limit, unit, at_least, note=""):
    """A line of the table of budgets; `at_least`: the figure may not be lower than the limit, else not higher. short_by: a share of the limit."""
    short = (limit - figure if at_least else figure - limit) / limit
    return {"what": what, "figure": figure, "limit": limit, "unit": unit, "at_least": at_least, "ok": short <= 0, "short_by": max(short, 0), "note": note}


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"bench: {what} takes too long")
        time.sleep(0.005)


def raise_descriptor_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Server:
    """with Pipe(...) as server: its own fresh directory; killed and removed at the end."""

    name = "server"

    def __init__(self, transport="tcp", durability="process"):
        self.directory = tempfile.mkdtemp(prefix="packd-bench-")
        self.durability = durability
        self.listen = f"unix:{self.directory}/s" if transport == "unix" else "127.0.0.1:0"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def anonymous_mib(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) / 1024
        raise SystemExit(f"bench: {self.name} has ended")


class Pipe(Server):
    name = "pipe"

    def start(self):
        self.process = subprocess.Popen([program("tests", "bench", "pipe_server"), self.listen, os.path.join(self.directory, "log"), self.durability],
                                        stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise SystemExit("bench: the pipe does not start")


class Packd(Server):
    """`feed`, `config`: what differs from a feed of packs of 32,768 without the probe."""

    name = "packd"

    def __init__(self, transport="tcp", durability="process", feed=None, config=None, probe=False):
        super().__init__(transport, durability)
        self.config = {"log": {"durability": durability, "max_bytes": "32GiB"}, "validate": {"fraction": 1.0 if probe else 0},
                       "feeds": [{"name": "default", "seq_len": 32768, "window": 1024, **(feed or {})}], **(config or {})}

    def start(self):
        path, ports, log = (os.path.join(self.directory, name) for name in ("packd.yaml", "ports", "stderr"))
        with open(path, "w") as file:
            json.dump(self.config, file)
        with open(log, "w") as stderr:
            self.process = subprocess.Popen([program("server", "packd"), "--config", path, "--listen", self.listen, "--http", "127.0.0.1:0",
                                             "--data-dir", os.path.join(self.directory, "log"), "--ports-file", ports], stderr=stderr)

        def started():
            if self.process.poll() is not None:
                with open(log) as file:
                    raise SystemExit(f"bench: packd ended with {self.process.returncode}:\n{file.read()}")
            with open(log) as file:
                return os.path.exists(ports) and "selftest_passed" in file.read()

        wait_for(started, "packd's start")
        with open(ports) as file:
            self.address = json.load(file)["grpc"][0]


class Watch:
    """Samples a server's anonymous memory while the block runs: .marks is [(seconds, MiB)]."""

    def __init__(self, server, every_s=0.02):
        self.server, self.every_s, self.marks = server, every_s, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        began = time.monotonic()
        while True:
            self.marks.append((time.monotonic() - began, self.server.anonymous_mib()))
            if self.over.wait(self.every_s):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    @property
    def peak_mib(self):
        return max(mib for _, mib in self.marks)


def load_command(server, **options):
    """`load` against this server; options as it has them, a flag as True."""
    command = [program("tests", "bench", "load"), server.name, server.address]
    for name, value in options.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)] if value is not False else []
    return command


def load(server, **options):
    """Its JSON, with the processor time that both sides took."""
    command, before = load_command(server, **options), server.cpu_s()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    overdue = threading.Timer(DEADLINE_S, process.kill)
    overdue.start()
    output = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    overdue.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)} ended with {process.returncode}")
    return {**json.loads(output), "server_cpu_s": server.cpu_s() - before, "client_cpu_s": usage.ru_utime + usage.ru_stime}


def in_turns(runs, *measures):
    """Calls each of `measures` `runs` times, the first one first in every other turn; a list of results for each."""
    results = [[] for _ in measures]
    for run in range(runs):
        order = list(zip(measures, results))
        for one, found in order if run % 2 == 0 else order[::-1]:
            found.append(one())
    return results
