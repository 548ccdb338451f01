"""Processes under the preloaded fault library, and the judgement of what they leave behind."""

import json
import os
import random
import shutil
import subprocess
import tempfile

TOP = os.getcwd()
FAULT = os.path.join(TOP, "tests", "fault", "libpackd_fault.so")
DRIVER = os.path.join(TOP, "tests", "fault", "driver")
PACKCTL = os.path.join(TOP, "client", "packctl")
FULL = os.environ.get("PACKD_FULL") == "1"
SEED = int(os.environ.get("PACKD_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
LOG_FAILED = 74  # packd: the log can no longer be trusted
NOT_OPENED = 2
SANITIZED = 77
TIMEOUT_S = 120


def sanitized():
    """Whether this build cannot be given faults: a sanitizer owns the calls that are to fail."""
    return subprocess.run([DRIVER], capture_output=True, timeout=TIMEOUT_S).returncode == SANITIZED


def environment(directory, **fault):
    """The environment of a process whose files below `directory` are watched; fault: kind, at, errno, report, trace."""
    values = {f"PACKD_FAULT_{key.upper()}": str(value) for key, value in fault.items()}
    return {**os.environ, "TEST_TMPDIR": directory, "PACKD_FAULT_DIR": directory, "LD_PRELOAD": FAULT, **values}


def read(path):
    """A file's text, empty where there is none."""
    if not os.path.exists(path):
        return ""
    with open(path, errors="replace") as file:
        return file.read()


class Scratch:
    """with Scratch() as directory: a directory with an empty `log` in it."""

    def __enter__(self):
        self.path = tempfile.mkdtemp()
        os.mkdir(os.path.join(self.path, "log"), 0o700)
        return self.path

    def __exit__(self, kind, value, trace):
        shutil.rmtree(self.path, ignore_errors=True)


def driver(what, directory, **fault):
    """Runs the driver on directory/log and directory/acks; the CompletedProcess."""
    env = environment(directory, **fault) if fault else {**os.environ, "TEST_TMPDIR": directory}
    return subprocess.run([DRIVER, what, os.path.join(directory, "log"), os.path.join(directory, "acks")], env=env, text=True,
                          errors="replace", capture_output=True, timeout=TIMEOUT_S)


def judge(directory):
    """Everything acked is in directory/log, and every digest in it holds; else AssertionError with the story."""
    data = os.path.join(directory, "log", "data.mdb")
    if not read(os.path.join(directory, "acks")) and (not os.path.exists(data) or os.path.getsize(data) == 0):
        return  # it failed before there was a log
    done = driver("check", directory)
    assert done.returncode == 0, f"check: {done.returncode}\n{done.stderr}"
    done = subprocess.run([PACKCTL, "--json", "log", "verify", os.path.join(directory, "log")], text=True, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0 and json.loads(done.stdout)["clean"], f"verify: {done.returncode}\n{done.stdout}{done.stderr}"
