"""What a sample costs as work grows: 1, 10 and 100 times the samples, streams, jobs. Flat is what it should be.

Processor time is packd's own, the probe off; memory is anonymous, its peak and what is left when all is delivered. `growth` is each row's cost a sample over
that of the first row of its kind.
"""

from support import Packd, Watch, in_turns, load, median, say

CONFIG = {"memory": {"batches": "256MiB", "ingest": "64MiB"}}
SMALL_MIB = 10  # of samples of 1 KiB on average: some 10,000
KINDS = {
    "samples": [{"mib": SMALL_MIB}, {"mib": 10 * SMALL_MIB}, {"mib": 100 * SMALL_MIB}],
    "streams": [{"mib": 10 * SMALL_MIB, "producers": n} for n in (1, 10, 100)],
    "jobs": [{"mib": SMALL_MIB, "jobs": n} for n in (1, 10, 100)],
}


def run_once(options):
    with Packd(feed={"seq_len": 8192}, config=CONFIG) as packd:
        with Watch(packd) as watch:
            result = load(packd, **{"producers": 1, "ranks": 1, "sample": 1024, **options})
        return {**result, "peak_mib": watch.peak_mib, "end_mib": packd.anonymous_mib()}


def measure(quick):
    found = {}
    say("| growing | | samples delivered | server CPU us a sample | growth | peak MiB | at the end MiB |\n|---|---|---|---|---|---|---|")
    for kind, steps in KINDS.items():
        rows = found[kind] = []
        for times, options in zip((1, 10, 100), steps):
            if quick and times == 100 and kind != "streams":
                options = {**options, "mib": options["mib"] // 10 or 1}
            runs, = in_turns(1 if quick or times == 100 else 3, lambda: run_once(options))
            delivered = runs[0]["samples"] * options.get("jobs", 1)
            row = {"times": times, **options, "delivered": delivered, "us_a_sample": median(r["server_cpu_s"] for r in runs) / delivered * 1e6,
                   "peak_mib": median(r["peak_mib"] for r in runs), "end_mib": median(r["end_mib"] for r in runs)}
            row["growth"] = row["us_a_sample"] / (rows[0]["us_a_sample"] if rows else row["us_a_sample"])
            rows.append(row)
            say(f"| {kind} | {times} x | {delivered} | {row['us_a_sample']:.1f} | {row['growth']:.2f} | {row['peak_mib']:.0f} | {row['end_mib']:.0f} |")
    return found
