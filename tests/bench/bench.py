#!/usr/bin/env python3
"""Runs sections of the benchmarks, prints their tables and the table of budgets, writes JSON.

    tests/bench/bench.py [--quick] [--out DIR] [--row NAME ...] [SECTION ...]     from the top, after //tests/bench:all, //tests/gpu:probe_bench,
                                                                                  //server:packd and //client/... were built; ./bench.sh does both

Each section writes DIR/NAME.json, and DIR/results.json holds all of this run with the budgets. Exit status 1: budgets are missed beyond the allowance,
at most two, none by more than a fifth. --quick runs everything once with little data: whether it works, not how fast; it judges nothing.
--row limits end-to-end to these rows.
"""

import argparse
import json
import os
import platform
import sys
import time

import append
import client_loop
import end_to_end
import growth
import latency
import memory
import packing
import peers
import probe
import restart
from support import SHORT_AT_MOST, say

SECTIONS = {  # name: (title, module); in the order in which they run
    "packing": ("Packing: fill and decisions a second", packing),
    "end-to-end": ("End to end beside the bare pipe", end_to_end),
    "latency": ("Fetch of a ready batch", latency),
    "restart": ("Start and restart", restart),
    "memory": ("Anonymous memory", memory),
    "growth": ("Cost as work grows", growth),
    "append": ("Durable append beside bare LMDB", append),
    "probe": ("Attention probe on the CPU", probe),
    "python": ("Python beside C", client_loop),
    "peers": ("Peers", peers),
}
MISSES_AT_MOST = 2


def machine():
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    with open("/proc/loadavg") as file:
        load = file.read().split()[0]
    return {"cpu": models[0] if models else platform.machine(), "cores": os.cpu_count(), "kernel": platform.release(), "load_at_start": float(load)}


def verdict(budgets):
    """0 where the misses are within the allowance, else 1; a row of its own for each budget."""
    say("| budget | figure | limit | | short by |\n|---|---|---|---|---|")
    for row in budgets:
        note = f" ({row['note']})" if row["note"] else ""
        say(f"| {row['what']} | {row['figure']:.4g} {row['unit']} | {'>=' if row['at_least'] else '<='} {row['limit']:.4g}{note} | "
            f"{'ok' if row['ok'] else 'MISSED'} | {'' if row['ok'] else format(row['short_by'], '.1%')} |")
    missed = [row for row in budgets if not row["ok"]]
    beyond = [row for row in missed if row["short_by"] > SHORT_AT_MOST]
    say(f"\n{len(budgets) - len(missed)} of {len(budgets)} hold; allowed: {MISSES_AT_MOST} missed, none by more than {SHORT_AT_MOST:.0%}; "
        f"missed {len(missed)}, by more {len(beyond)}")
    return int(len(missed) > MISSES_AT_MOST or bool(beyond))


def write(directory, name, found):
    with open(os.path.join(directory, name + ".json"), "w") as file:
        json.dump(found, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="bench")
    parser.add_argument("--row", action="append", choices=end_to_end.ROWS)
    parser.add_argument("section", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    args = parser.parse_args()
    unknown = set(args.section) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    os.makedirs(args.out, exist_ok=True)
    results = {"machine": machine(), "quick": args.quick, "sections": {}}
    say("machine: {cpu}, {cores} cores, load {load_at_start}".format(**results["machine"]))
    for name, (title, module) in SECTIONS.items():
        if args.section and name not in args.section:
            continue
        say(f"\n== {title} ({name})\n")
        began = time.monotonic()
        found = module.measure(args.quick, *([args.row] if module is end_to_end else []))
        found["took_s"] = round(time.monotonic() - began, 1)
        results["sections"][name] = found
        write(args.out, name, found)
        say(f"\n({found['took_s']:.0f} s)")
    results["budgets"] = [row for found in results["sections"].values() for row in found.get("budgets", [])]
    say("\n== Budgets\n")
    status = verdict(results["budgets"])
    results["within_allowance"] = status == 0
    write(args.out, "results", results)
    if args.quick:
        say("a quick run: the figures say nothing, the exit status neither")
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
