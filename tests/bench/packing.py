"""Decisions a second of the planner and how full its packs are, per length law and list: planner_bench's table."""

import json
import subprocess

from support import budget, program, say


def planner_table(samples, fill_only):
    """planner_bench's JSON."""
    command = [program("tests", "bench", "planner_bench"), "--json", "--samples", str(samples), *(["--fill-only"] if fill_only else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: a budget is missed
        raise SystemExit(f"bench: planner_bench ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def measure(quick):
    found = planner_table(200_000 if quick else 2_000_000, fill_only=False)
    say("| lengths | L | fill / ceiling | fill / BFD, whole set | exact | sequential | BFD | ceiling | age, samples | M samples/s | |")
    say("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        say(f"| {row['law']} | {row['seq_len']} | {row['exact'] / row['ceiling']:.4f} | {row['exact'] / row['bfd']:.4f} | {row['exact']:.4f} | "
            f"{row['sequential']:.2f} | {row['bfd']:.4f} | {row['ceiling']:.3f} | {row['age_max_samples']} | {row['million_samples_per_s']:.1f} | "
            f"{'ok' if row['exact'] >= row['budget'] else 'MISSED'} |")
    worst = min(found["rows"], key=lambda row: row["exact"] - row["budget"])
    found["budgets"] = [budget("planner, log-normal lengths", found["rows"][0]["million_samples_per_s"], 20, "M samples/s", True),
                        budget(f"fill, the row nearest to its budget ({worst['law']}, {worst['seq_len']})", worst["exact"], worst["budget"], "%", True)]
    return found
