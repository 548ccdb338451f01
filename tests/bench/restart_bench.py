#!/usr/bin/env python3
"""How long packd takes to come back: it is filled, killed with SIGKILL, and started again.

Prints, for each start, milliseconds until the first connection is accepted (budget 100) and seconds until a rank has its first batch whole, at the
step where it was (budget 2, with a log of 4 GiB). The log is filled by //tests/bench:load; a trainer has taken and committed a part of it.

    tests/bench/restart_bench.py [--gib N] [--starts N] [--json FILE]     from the top, after //tests/bench, //server:packd, //client:packctl were built
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

from bench import program


def start(directory, config):
    """(process, address, seconds until something accepts)."""
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


def fetch(address, *more):
    command = [program("client", "packctl"), "--server", address, "--timeout", "60s", "--json", "fetch", "--job", "train", "--dp-size", "1", "--rank",
               "0", "--rows", "4", *map(str, more)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if json.loads(line)["type"] == "batch"]


def fill(address, gib):
    """Samples of 4 KiB through packd; a reader takes them, and the feed stays open for nobody."""
    command = [program("tests", "bench", "load"), "packd", address, 4, 1, 4096, gib * 1024]
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="packd-restart-")
    config = os.path.join(directory, "packd.yaml")
    with open(config, "w") as file:
        # two jobs hold the log: nothing of it may be trimmed
        json.dump({"log": {"durability": "process", "max_bytes": f"{2 * args.gib}GiB"},
                   "feeds": [{"name": "default", "seq_len": 8192, "window": 1024, "jobs": [{"name": "train"}, {"name": "load"}]}]}, file)
    try:
        process, address, _, _ = start(directory, config)
        fill(address, args.gib)
        taken = fetch(address, "--world", "w0", "--steps", 40, "--commit-every", 10)
        size = os.path.getsize(os.path.join(directory, "log", "data.mdb"))
        runs = []
        for i in range(args.starts):
            process.send_signal(signal.SIGKILL)
            process.wait()
            process, address, began, accepted = start(directory, config)
            batch = fetch(address, "--world", f"w{i + 1}", "--steps", 1)[0]
            runs.append({"listening_ms": accepted * 1e3, "first_batch_s": time.monotonic() - began, "step": batch["step"]})
            print(f"start {i + 1}: listening after {runs[-1]['listening_ms']:.0f} ms, step {batch['step']} after {runs[-1]['first_batch_s']:.2f} s",
                  flush=True)
        result = {"log_bytes": size, "steps_taken": len(taken), "listening_ms": statistics.median(r["listening_ms"] for r in runs),
                  "first_batch_s": statistics.median(r["first_batch_s"] for r in runs), "runs": runs}
        print(f"log of {size / 2**30:.2f} GiB, medians: listening {result['listening_ms']:.0f} ms, first batch {result['first_batch_s']:.2f} s")
        process.kill()
        process.wait()
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=1)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
