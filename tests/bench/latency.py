"""How long a batch that is ready takes from the request to its last byte, beside the pipe's record of about the same size."""

from support import Packd, Pipe, budget, in_turns, load, median, say

TURNS, BATCHES = 3, 1000
LOAD = {"producers": 1, "ranks": 1, "sample": 4096, "mib": 520}  # batches of 512 KiB: as many as are asked for


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def run_once(server, batches):
    with server:
        return load(server, **LOAD, latency=batches + 1)


def summary(turns):
    values = [value for turn in turns for value in turn["latency_us"][1:]]  # the first one is built when it is asked for
    return {"batches": len(values), "bytes": turns[0]["latency_bytes"], "mb_s": median(turn["mb_s"] for turn in turns),
            **{name: percentile(values, part) / 1e3 for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))}}


def measure(quick):
    turns, batches = (1, 40) if quick else (TURNS, BATCHES)
    found = dict(zip(("pipe", "packd"), map(summary, in_turns(turns, lambda: run_once(Pipe(), batches), lambda: run_once(Packd(), batches)))))
    pipe, packd = found["pipe"], found["packd"]
    limit = 5 + packd["bytes"] / (pipe["mb_s"] / 2 * 1e6) * 1e3
    say("| | p50 ms | p99 ms | p99.9 ms | bytes | batches |\n|---|---|---|---|---|---|")
    say("| packd / pipe | {} |  |  |".format(" | ".join(f"{packd[p] / pipe[p]:.2f}" for p in ("p50_ms", "p99_ms", "p999_ms"))))
    for name, row in (("packd", packd), ("pipe", pipe)):
        say(f"| {name} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {row['p999_ms']:.2f} | {row['bytes']} | {row['batches']} |")
    found["budgets"] = [budget("fetch of a ready batch, p99", packd["p99_ms"], limit, "ms", False,
                               f"5 ms + {packd['bytes']} bytes at half the pipe's {pipe['mb_s']:.0f} MB/s")]
    return found
