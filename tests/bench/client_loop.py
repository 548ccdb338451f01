"""A Python loop over batches beside a C loop over the same library: python_bench's figures."""

import json
import os
import subprocess

from support import program, say

BUDGET_RATIO = 1.15


def measure(quick):
    arguments = ["--mib", "32" if quick else "128", "--rounds", "1" if quick else "5"]
    # as `bazel run` would: in the runfiles
    done = subprocess.run(["tests/integration/run_python.sh", "tests/bench/python_bench.py", "--json", *arguments], capture_output=True, text=True,
                          cwd=os.path.join(program("tests", "bench", "python_bench.runfiles"), "packd"))
    if done.returncode not in (0, 1):  # 1: Python takes too much longer
        raise SystemExit(f"bench: python_bench ended with {done.returncode}: {done.stderr}")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"bench: python_bench failed: {done.stdout}\n{done.stderr}") from None
    say(f"Python / C, time taken {found['python_over_c']:.2f} (at most {BUDGET_RATIO}), processor time {found['python_over_c_cpu']:.2f}: "
        f"C {found['c_mib_per_s']:.0f}, Python {found['python_mib_per_s']:.0f} MiB/s of batches; put {found['put_samples_per_s']:.0f}, "
        f"put_many {found['put_many_samples_per_s']:.0f} samples/s")
    return found
