"""How long packd takes to come: with an empty log, and with one of 4 GiB after it was killed with SIGKILL.

Milliseconds until the first connection is accepted, and seconds until a rank has its first batch whole, at the step where it was. The log is filled by
`load`; a trainer has taken and committed a part of it. The self-test of the probe is part of what is measured.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from support import budget, median, program, say

BUDGET_LISTENING_MS, BUDGET_BATCH_S = 100, 2


def start(directory, config):
    """(process, address, monotonic time of the start, seconds until something accepts)."""
    ports = os.path.join(directory, "ports")
    if os.path.exists(ports):
        os.unlink(ports)
    listen = os.path.join(directory, "s")
    began = time.monotonic()
    with open(os.path.join(directory, "stderr"), "a") as stderr:
        process = subprocess.Popen([program("server", "packd"), "--config", config, "--listen", f"unix:{listen}", "--http", "127.0.0.1:0",
                                    "--data-dir", os.path.join(directory, "log"), "--ports-file", ports], stderr=stderr)
    accepted = None
    while accepted is None:
        if process.poll() is not None:
            raise SystemExit(f"packd ended with {process.returncode}; see {directory}/stderr")
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(listen)
                accepted = time.monotonic() - began
        except OSError:
            time.sleep(0.001)
    return process, f"unix:{listen}", began, accepted


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def fetch(address, *more):
    command = [program("client", "packctl"), "--server", address, "--timeout", "60s", "--json", "fetch", "--job", "train", "--dp-size", "1", "--rank",
               "0", "--rows", "4", *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if json.loads(line)["type"] == "batch"]


def fill(address, gib):
    """Samples of 4 KiB through packd; the job `load-0` takes them."""
    subprocess.run([program("tests", "bench", "load"), "packd", address, "--producers", "4", "--mib", str(gib * 1024)], check=True,
                   stdout=subprocess.DEVNULL)


def start_empty(directory, config):
    process, _, _, accepted = start(directory, config)
    kill(process)
    shutil.rmtree(os.path.join(directory, "log"))
    return accepted * 1e3


def restart(process, directory, config, number):
    kill(process)
    process, address, began, accepted = start(directory, config)
    batch = fetch(address, "--world", f"w{number}", "--steps", 1)[0]
    return process, {"listening_ms": accepted * 1e3, "first_batch_s": time.monotonic() - began, "step": batch["step"]}


def run(directory, gib, starts):
    config = os.path.join(directory, "packd.yaml")
    with open(config, "w") as file:
        # two jobs hold the log: nothing of it may be trimmed
        json.dump({"log": {"durability": "process", "max_bytes": f"{2 * gib}GiB"},
                   "feeds": [{"name": "default", "seq_len": 8192, "window": 1024, "jobs": [{"name": "train"}, {"name": "load-0"}]}]}, file)
    empty = [start_empty(directory, config) for _ in range(starts)]
    process, address, _, _ = start(directory, config)
    try:
        fill(address, gib)
        taken = fetch(address, "--world", "w0", "--steps", 40, "--commit-every", 10)
        size = os.path.getsize(os.path.join(directory, "log", "data.mdb"))
        runs = []
        for number in range(1, starts + 1):
            process, found = restart(process, directory, config, number)
            runs.append(found)
    finally:
        kill(process)
    return {"log_bytes": size, "steps_taken": len(taken), "empty_listening_ms": median(empty), "runs": runs,
            **{what: median(run[what] for run in runs) for what in ("listening_ms", "first_batch_s")}}


def measure(quick):
    gib, starts = (1, 2) if quick else (4, 7)
    directory = tempfile.mkdtemp(prefix="packd-bench-")
    try:
        found = run(directory, gib, starts)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    say(f"first batch / budget {found['first_batch_s'] / BUDGET_BATCH_S:.2f}, listening / budget {found['listening_ms'] / BUDGET_LISTENING_MS:.2f}: with a log "
        f"of {found['log_bytes'] / 2**30:.2f} GiB listening after {found['listening_ms']:.0f} ms, first batch after {found['first_batch_s']:.2f} s; with an "
        f"empty log listening after {found['empty_listening_ms']:.0f} ms; medians of {starts} starts")
    say("each: " + ", ".join(f"{run['listening_ms']:.0f} ms and {run['first_batch_s']:.2f} s" for run in found["runs"]))
    found["budgets"] = [budget("listening, empty log", found["empty_listening_ms"], BUDGET_LISTENING_MS, "ms", False),
                        budget("listening after kill -9", found["listening_ms"], BUDGET_LISTENING_MS, "ms", False),
                        budget("first batch after kill -9", found["first_batch_s"], BUDGET_BATCH_S, "s", False)]
    return found
