#!/usr/bin/env python3
"""packd beside the bare pipe: the same bytes through the same parts, in the same run, taking turns.

Prints a table, ratios first, and with --json writes everything. A row is one arrangement; its figures are medians over the runs:

  rate     packd's bytes a second over the pipe's (payload in and out, all acked and all taken)
  CPU      the pipe's processor time a byte over packd's, servers and clients together: what the rate would be on a machine that does nothing else;
           the one to read where the machine is shared
  p50 ...  time from the request for a ready batch to its last byte, packd and pipe

    tests/bench/bench.py [--runs N] [--mib N] [--only NAME] [--json FILE]     from the top, after //tests/bench and //server:packd were built
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BIN = os.environ.get("PACKD_BENCH_BIN", "bazel-bin")
TICK = os.sysconf("SC_CLK_TCK")
DEADLINE_S = 300
BASE = {"transport": "tcp", "durability": "process", "producers": 4, "ranks": 1, "sample": 4096, "probe": False}
ROWS = {
    "base": {},
    "unix socket": {"transport": "unix"},
    "fsync": {"durability": "fsync"},
    "1 producer": {"producers": 1},
    "16 producers": {"producers": 16},
    "8 ranks": {"ranks": 8},
    "16 producers, 8 ranks, fsync": {"producers": 16, "ranks": 8, "durability": "fsync"},
    "samples of 64 B": {"sample": 64},
    "samples of 1 KiB": {"sample": 1024},
    "samples of 64 KiB": {"sample": 65536},
    "with the CPU probe": {"probe": True, "mib": 1024},  # long enough to leave its burst of the first second behind
}
LATENCY_BATCHES = 200


def program(*path):
    return os.path.join(BIN, *path)


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"bench: {what} takes too long")
        time.sleep(0.02)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Pipe:
    name = "pipe"

    def __init__(self, row, directory, address):
        self.process = subprocess.Popen([program("tests", "bench", "pipe_server"), address, os.path.join(directory, "log"), row["durability"]],
                                        stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()


class Packd:
    name = "packd"

    def __init__(self, row, directory, address):
        config = {"log": {"durability": row["durability"]}, "feeds": [{"name": "default", "seq_len": 32768, "window": 1024}],
                  "validate": {"fraction": 1.0 if row["probe"] else 0}}
        path, ports, log = (os.path.join(directory, name) for name in ("packd.yaml", "ports", "stderr"))
        with open(path, "w") as file:
            json.dump(config, file)
        with open(log, "w") as stderr:
            self.process = subprocess.Popen([program("server", "packd"), "--config", path, "--listen", address, "--http", "127.0.0.1:0",
                                             "--data-dir", os.path.join(directory, "log"), "--ports-file", ports], stderr=stderr)
        wait_for(lambda: os.path.exists(ports), "packd's start")
        wait_for(lambda: "selftest_passed" in open(log).read(), "packd's self-test")
        with open(ports) as file:
            self.address = json.load(file)["grpc"][0]


def run_once(kind, row, mib):
    """One server, one load; its JSON with the processor time of both."""
    directory = tempfile.mkdtemp(prefix="packd-bench-")
    address = f"unix:{directory}/s" if row["transport"] == "unix" else "127.0.0.1:0"
    server = kind(row, directory, address)
    try:
        before = cpu_seconds(server.process.pid)
        command = [program("tests", "bench", "load"), server.name, server.address, row["producers"], row["ranks"], row["sample"], mib]
        load = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        output = load.stdout.read()
        _, status, usage = os.wait4(load.pid, 0)
        load.returncode = os.waitstatus_to_exitcode(status)
        if load.returncode != 0:
            raise SystemExit(f"bench: {' '.join(map(str, command))} ended with {load.returncode}")
        result = json.loads(output)
        result["server_cpu_s"] = cpu_seconds(server.process.pid) - before
        result["client_cpu_s"] = usage.ru_utime + usage.ru_stime
        return result
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def latency_once(kind, row):
    directory = tempfile.mkdtemp(prefix="packd-bench-")
    server = kind(row, directory, "127.0.0.1:0")
    try:
        command = [program("tests", "bench", "load"), server.name, server.address, 1, 1, 4096, 128, LATENCY_BATCHES]
        return json.loads(subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True).stdout)["latency"]
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def cpu_of(result):
    return (result["server_cpu_s"] + result["client_cpu_s"]) / result["in_bytes"]


def measure(name, changes, runs, mib):
    row = {**BASE, **changes}
    pipe, packd = [], []
    for i in range(runs):
        for kind, results in ((Pipe, pipe), (Packd, packd)) if i % 2 == 0 else ((Packd, packd), (Pipe, pipe)):
            results.append(run_once(kind, row, row.get("mib", mib)))
    median = statistics.median
    return {"name": name, **row,
            "rate_ratio": median(b["mb_s"] / a["mb_s"] for a, b in zip(pipe, packd)),
            "cpu_ratio": median(cpu_of(a) / cpu_of(b) for a, b in zip(pipe, packd)),
            "server_cpu_ratio": median(a["server_cpu_s"] / b["server_cpu_s"] for a, b in zip(pipe, packd)),
            "pipe_mb_s": median(r["mb_s"] for r in pipe), "packd_mb_s": median(r["mb_s"] for r in packd),
            "packd_mtokens_s": median(r["mb_s"] for r in packd) / 4, "pipe": pipe, "packd": packd}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--only", action="append", choices=ROWS)
    parser.add_argument("--json")
    args = parser.parse_args()
    table = []
    print(f"{'':30} {'rate':>6} {'CPU':>6} {'server':>6} {'packd MB/s':>11} {'pipe MB/s':>10} {'M tokens/s':>10}")
    for name, changes in ROWS.items():
        if args.only and name not in args.only:
            continue
        row = measure(name, changes, args.runs, args.mib)
        table.append(row)
        print(f"{name:30} {row['rate_ratio']:6.2f} {row['cpu_ratio']:6.2f} {row['server_cpu_ratio']:6.2f} {row['packd_mb_s']:11.1f} "
              f"{row['pipe_mb_s']:10.1f} {row['packd_mtokens_s']:10.1f}", flush=True)
    latency = {kind.name: latency_once(kind, BASE) for kind in (Pipe, Packd)}
    for name, values in latency.items():
        print(f"fetch of a ready batch, {name}: p50 {values['p50_us']:.0f}, p99 {values['p99_us']:.0f}, p99.9 {values['p999_us']:.0f} us, "
              f"{values['bytes']} bytes")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"end_to_end": table, "latency": latency}, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
