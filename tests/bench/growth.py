"""What a sample costs as work grows: 1, 10 and 100 times the samples, streams, jobs. Flat is what it should be.

Processor time is packd's own, the probe off, beside what the bare pipe takes for the same bytes; memory is anonymous, its peak and what is left when all is
delivered. `growth` is each row's cost a sample over that of the first row of its kind.
"""

from support import Packd, Pipe, Watch, in_turns, load, median, say

CONFIG = {"memory": {"batches": "256MiB", "ingest": "64MiB"}}
SMALL_MIB = 10  # of samples of 1 KiB on average: some 10,000
KINDS = {
    "samples": [{"mib": SMALL_MIB}, {"mib": 10 * SMALL_MIB}, {"mib": 100 * SMALL_MIB}],
    "streams": [{"mib": 10 * SMALL_MIB, "producers": n} for n in (1, 10, 100)],
    "jobs": [{"mib": SMALL_MIB, "jobs": n} for n in (1, 10, 100)],
}


def run_packd(options):
    with Packd(feed={"seq_len": 8192}, config=CONFIG) as packd:
        with Watch(packd) as watch:
            result = load(packd, **options)
        return {**result, "peak_mib": watch.peak_mib, "end_mib": packd.anonymous_mib()}


def run_pipe(options):
    """What gRPC and LMDB alone take for it; {} where it has no such thing."""
    if "jobs" in options:
        return {}
    with Pipe() as pipe:
        return load(pipe, **options)


def us_a_sample(runs, jobs):
    return median(r["server_cpu_s"] / (r["samples"] * jobs) for r in runs) * 1e6 if runs[0] else None


def measure(quick):
    found = {}
    say("| growing | | samples delivered | server CPU us a sample | growth | the pipe's us | growth | peak MiB | at the end MiB |\n|---|---|---|---|---|---|---|---|---|")
    for kind, steps in KINDS.items():
        rows = found[kind] = []
        for times, step in zip((1, 10, 100), steps):
            if quick and times == 100 and kind != "streams":
                step = {**step, "mib": step["mib"] // 10 or 1}
            options, jobs = {"producers": 1, "ranks": 1, "sample": 1024, **step}, step.get("jobs", 1)
            packd, pipe = in_turns(1 if quick or (times == 100 and kind != "streams") else 3, lambda: run_packd(options), lambda: run_pipe(options))
            row = {"times": times, **step, "delivered": packd[0]["samples"] * jobs, "us_a_sample": us_a_sample(packd, jobs), "pipe_us_a_sample": us_a_sample(pipe, jobs),
                   "peak_mib": median(r["peak_mib"] for r in packd), "end_mib": median(r["end_mib"] for r in packd)}
            rows.append(row)
            row["growth"] = row["us_a_sample"] / rows[0]["us_a_sample"]
            beside = " | "
            if pipe[0]:
                row["pipe_growth"] = row["pipe_us_a_sample"] / rows[0]["pipe_us_a_sample"]
                beside = f"{row['pipe_us_a_sample']:.1f} | {row['pipe_growth']:.2f}"
            say(f"| {kind} | {times} x | {row['delivered']} | {row['us_a_sample']:.1f} | {row['growth']:.2f} | {beside} | {row['peak_mib']:.0f} | {row['end_mib']:.0f} |")
    return found
