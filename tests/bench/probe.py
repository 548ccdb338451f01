"""Tokens a second of the attention probe on the CPU backend, on one core: probe_bench's table."""

import subprocess

from support import program, say


def measure(quick):
    del quick  # a few seconds in any case
    done = subprocess.run([program("tests", "gpu", "probe_bench")], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    rows = [dict(zip(("segment", "causal_mtokens_s", "full_mtokens_s"), map(float, line.split()))) for line in lines if line.split()[0].isdigit()]
    say("| segment | causal, M tokens/s | full, M tokens/s |\n|---|---|---|")
    for row in rows:
        say(f"| {row['segment']:.0f} | {row['causal_mtokens_s']:.1f} | {row['full_mtokens_s']:.1f} |")
    say(f"\n{lines[0]}; {lines[-1]}")
    return {"what": lines[0], "self_test": lines[-1], "rows": rows}
