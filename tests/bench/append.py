"""Durable appends of log and sequencer beside a bare LMDB loop: log_bench's table."""

import subprocess
import tempfile

from support import budget, program, say

COLUMNS = ("ratio", "packd_mb_s", "bare_mb_s", "packd_cpu_us", "bare_cpu_us")
BUDGET_RATIO = 0.60


def measure(quick):
    done = subprocess.run([program("tests", "bench", "log_bench"), tempfile.gettempdir(), "16" if quick else "64"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"bench: log_bench ended with {done.returncode}: {done.stderr}")
    rows = []
    say("| durability | commit KiB | rate | packd MB/s | bare MB/s | packd CPU us a block | bare | |\n|---|---|---|---|---|---|---|---|")
    for line in done.stdout.splitlines()[1:]:
        durability, commit, *figures = line.split()
        row = {"durability": durability, "commit_bytes": int(commit), **dict(zip(COLUMNS, map(float, figures)))}
        rows.append(row)
        verdict = "no budget" if durability != "fsync" else "ok" if row["ratio"] >= BUDGET_RATIO else "MISSED"
        say(f"| {durability} | {row['commit_bytes'] >> 10} | {row['ratio']:.2f} | {row['packd_mb_s']:.0f} | {row['bare_mb_s']:.0f} | "
            f"{row['packd_cpu_us']:.0f} | {row['bare_cpu_us']:.0f} | {verdict} |")
    worst = min((row for row in rows if row["durability"] == "fsync"), key=lambda row: row["ratio"])
    return {"rows": rows, "budgets": [budget("durable append, the lowest row", worst["ratio"], BUDGET_RATIO, "of bare LMDB", True)]}
