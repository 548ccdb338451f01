"""A real daemon for a test: started on free ports in a directory of its own, stopped and judged at the end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TOP = os.getcwd()
PACKD = os.path.join(TOP, "server", "packd")
PACKD_FAILING = os.path.join(TOP, "server", "packd_failing")  # only where a test asks for it
PACKCTL = os.path.join(TOP, "client", "packctl")
DEADLINE_S = float(os.environ.get("PACKD_TEST_DEADLINE", "60"))


def wait_for(what, condition, deadline_s=DEADLINE_S):
    """Polls `condition` until it is true; a condition of another process has no event to wait on. Returns its value."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        pause.wait(0.01)
    raise AssertionError(f"{what}: not within {deadline_s:g} s")


def scratch():
    """A directory for one test; run_python.sh removes it when all pass."""
    return tempfile.mkdtemp(prefix="packd-")


class Daemon:
    """with Daemon(feeds=[...]) as packd: packd.address, packd.http(path), packd.packctl(...)"""

    def __init__(self, feeds=None, directory=None, extra=None, environment=None, arguments=(), program=PACKD):
        self.program = program
        self.directory = directory or scratch()
        self.config = {"feeds": feeds or [{"name": "default", "seq_len": 64, "window": 32}], **(extra or {})}
        self.environment = environment or {}
        self.arguments = list(arguments)
        self.process = None
        self.stderr_path = os.path.join(self.directory, "packd.stderr")

    def write_config(self):
        """Writes the configuration as it is now; a running daemon reads it again on SIGHUP. Its path."""
        config = os.path.join(self.directory, "packd.yaml")
        with open(config, "w") as file:
            json.dump(self.config, file)  # JSON is YAML
        return config

    def start(self):
        self.spawn()
        self.wait_listening()
        self.wait_ready()
        return self

    def spawn(self):
        """Only starts the process."""
        config = self.write_config()
        ports = self.ports_path()
        if os.path.exists(ports):
            os.unlink(ports)
        with open(self.stderr_path, "ab") as stderr:
            self.process = subprocess.Popen(
                [self.program, "--config", config, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir",
                 os.path.join(self.directory, "data"), "--ports-file", ports, *self.arguments],
                stderr=stderr, stdin=subprocess.DEVNULL, env={**os.environ, **self.environment})

    def ports_path(self):
        return os.path.join(self.directory, "ports.json")

    def wait_listening(self):
        ports = self.ports_path()
        wait_for("the daemon listens", lambda: os.path.exists(ports) or self.process.poll() is not None)
        if self.process.poll() is not None:
            raise AssertionError(f"packd exited with {self.process.returncode}:\n{self.log()}")
        with open(ports) as file:
            bound = json.load(file)
        self.address = bound["grpc"][0]
        self.http_address = bound["http"]

    def spawn_held(self, fifo, **environment):
        """Starts the build that tests use with its replay held at its end, until somebody opens `fifo` for writing; returns once all is read."""
        os.mkfifo(fifo)
        before = len(self.log()) if os.path.exists(self.stderr_path) else 0
        self.program, self.environment = PACKD_FAILING, {"PACKD_TEST_HOLD_REPLAY": fifo, **environment}
        self.spawn()
        self.http_address = wait_for("HTTP listens", lambda: re.search(r"replaying http=(\S+:\d+)\n", self.log()[before:]))[1]
        wait_for("all is read", lambda: re.fullmatch(r"replaying: record (\d+) of \1\n", self.http("/readyz")[1]))

    def wait_ready(self):
        wait_for("the daemon is ready", lambda: self.http("/readyz", quiet=True)[0] == 200)

    def log(self):
        with open(self.stderr_path, errors="replace") as file:
            return file.read()

    def http(self, path, headers=None, quiet=False, method="GET"):
        """(status, body, headers) of a request to the HTTP port; (0, reason, {}) when quiet and refused."""
        request = urllib.request.Request(f"http://{self.http_address}{path}", headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, reply.read().decode(), dict(reply.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), dict(error.headers)
        except OSError as error:
            if quiet:
                return 0, str(error), {}
            raise

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        status, text, _ = self.http("/metrics")
        assert status == 200, text
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def packctl(self, *arguments, stdin=None, check=True, timeout=DEADLINE_S):
        """Runs packctl against this daemon; the CompletedProcess with text in stdout and stderr."""
        done = subprocess.run([PACKCTL, "--server", self.address, *map(str, arguments)], input=stdin, text=True,
                              capture_output=True, timeout=timeout)
        if check and done.returncode != 0:
            raise AssertionError(f"packctl {arguments} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}\n"
                                 f"-- daemon --\n{self.log()}")
        return done

    def start_packctl(self, *arguments):
        return subprocess.Popen([PACKCTL, "--server", self.address, *map(str, arguments)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def status(self):
        return json.loads(self.packctl("--json", "status").stdout)

    def resident_bytes(self, what="RssAnon"):
        with open(f"/proc/{self.process.pid}/status") as file:
            for line in file:
                if line.startswith(what + ":"):
                    return int(line.split()[1]) * 1024
        raise AssertionError("no " + what)

    def stop(self, sig=signal.SIGTERM, deadline_s=DEADLINE_S, expect=0):
        if self.process is None:
            return
        process, self.process = self.process, None
        if process.poll() is None:
            process.send_signal(sig)
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait(10)
            raise AssertionError(f"packd did not stop within {deadline_s:g} s of signal {sig}:\n{self.log()}")
        assert process.returncode == expect, f"packd ended with {process.returncode}, expected {expect}:\n{self.log()}"

    def kill(self):
        self.stop(signal.SIGKILL, expect=-signal.SIGKILL)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, trace):
        if kind is not None:
            sys.stderr.write(f"-- packd's log --\n{self.log()}\n")
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self.process = None
            return
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
