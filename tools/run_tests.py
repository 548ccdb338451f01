#!/usr/bin/env python3
"""Runs the test suites one after the other and counts their cases; called by test.sh.

A suite is a Bazel configuration over the test targets, or a script. Cases are counted from the logs (cmocka's and unittest's closing
lines); a target that failed without naming a case counts as one failure. The last line is "N passed, N failed[, N skipped]".
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

TARGETS = ["//..."]
FUZZ_SECONDS, FUZZ_SECONDS_FULL = 10, 600
FUZZ_AT_ONCE = 2
SCRIPTS_FULL = ["tests/deploy/image_test.py"]


def suites(full):
    """Name, Bazel arguments, targets."""
    yield "opt", [], TARGETS
    if full:
        yield "asan", ["--config=asan"], TARGETS
        yield "tsan", ["--config=tsan"], TARGETS


def read_logs():
    """Target name -> text of its log, of the run just made."""
    logs = {}
    root = os.path.realpath("bazel-testlogs")
    for path in glob.glob(os.path.join(root, "**", "test.log"), recursive=True):
        with open(path, errors="replace") as file:
            logs["//" + os.path.relpath(os.path.dirname(path), root)] = (os.path.getmtime(path), file.read())
    return logs


def count(text):
    """(passed, failed, skipped) cases that a log names."""
    passed = sum(int(n) for n in re.findall(r"^\[  PASSED  \] (\d+) test", text, re.M))
    failed = sum(int(n) for n in re.findall(r"^\[  FAILED  \] +[^:]*: (\d+) test", text, re.M))
    skipped = sum(int(n) for n in re.findall(r"^\[  SKIPPED \] +[^:]*: (\d+) test", text, re.M))
    for ran, tail in re.findall(r"^Ran (\d+) tests? in [^\n]*\n+(OK[^\n]*|FAILED[^\n]*)", text, re.M):
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors|unexpected successes)=(\d+)", tail))
        omitted = sum(int(n) for n in re.findall(r"skipped=(\d+)", tail))
        passed += int(ran) - bad - omitted
        failed += bad
        skipped += omitted
    return passed, failed, skipped


def listed_results(output):
    """Target -> PASSED, FAILED, TIMEOUT, ... from Bazel's closing summary."""
    return dict(re.findall(r"^(//\S+)\s+(?:\(cached\) )?(PASSED|FAILED TO BUILD|NO STATUS|FAILED|TIMEOUT|FLAKY)", output, re.M))


def run_suite(name, arguments, targets):
    started = time.time()
    print(f"== {name}: bazel test {' '.join(arguments)} {' '.join(targets)}", flush=True)
    process = subprocess.Popen(
        ["bazel", "test", "--keep_going", "--test_summary=short", "--noshow_progress", "--test_env=PACKD_FULL", "--test_env=PACKD_TORCH_PYTHON",
         *arguments, "--", *targets],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines = []
    for line in process.stdout:
        lines.append(line)
        sys.stdout.write(line)
    process.wait()
    output = "".join(lines)
    results = listed_results(output)
    logs = read_logs()
    total = [0, 0, 0]
    skip_notes = []
    for target, result in sorted(results.items()):
        text = logs.get(target.replace(":", "/"), (0, ""))[1] if result not in ("FAILED TO BUILD", "NO STATUS") else ""
        passed, failed, skipped = count(text)
        if result == "PASSED" and passed + failed + skipped == 0:
            passed = 1
        if result != "PASSED" and failed == 0:
            failed = 1
        for i, n in enumerate((passed, failed, skipped)):
            total[i] += n
        skip_notes += [f"   skipped in {target}: {why.strip()}" for why in re.findall(r"^SKIP: (.*)$", text, re.M)]
        if failed:
            print(f"   {target}: {result}, {failed} failed")
    if process.returncode not in (0, 3, 4) or not results:
        if total[1] == 0:
            total[1] = 1
        print(f"   bazel exited with {process.returncode}")
    for note in skip_notes:
        print(note)
    print(f"== {name}: {len(results)} targets, {total[0]} passed, {total[1]} failed, {total[2]} skipped, {time.time() - started:.0f} s",
          flush=True)
    return total


def run_script(path):
    """A test that Bazel's sandbox cannot hold, run from the top of the tree; [passed, failed, skipped] cases."""
    started = time.time()
    print(f"== {path}", flush=True)
    done = subprocess.run([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    total = list(count(done.stdout))
    if done.returncode != 0:
        total[1] = max(1, total[1])
        print(done.stdout[-8000:])
    for why in re.findall(r"^SKIP: (.*)$", done.stdout, re.M):
        print(f"   skipped in {path}: {why.strip()}")
    print(f"== {path}: {total[0]} passed, {total[1]} failed, {total[2]} skipped, {time.time() - started:.0f} s", flush=True)
    return total


def run_fuzzers(seconds):
    """Every fuzz target for so many seconds under libFuzzer with sanitizers; [passed, failed, skipped] targets."""
    started = time.time()
    print(f"== fuzz: {seconds} s each", flush=True)
    query = subprocess.run(["bazel", "query", "--noshow_progress", "kind(cc_binary, //tests/fuzz:all)"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=False)
    targets = sorted(query.stdout.split())
    build = subprocess.run(["bazel", "build", "--config=fuzz", "--noshow_progress", *targets], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
    if build.returncode != 0 or not targets:
        print(build.stdout[-8000:])
        return [0, max(1, len(targets)), 0]
    root = subprocess.run(["bazel", "info", "--config=fuzz", "bazel-bin"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False).stdout.strip()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="packd-fuzz-") as scratch:
        for at in range(0, len(targets), FUZZ_AT_ONCE):
            runs = [(t, start_fuzzer(root, t, seconds, scratch)) for t in targets[at:at + FUZZ_AT_ONCE]]
            for target, process in runs:
                output = process.communicate()[0]
                executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
                print(f"   {target}: {'ok' if process.returncode == 0 else 'FAILED'}, {executed.group(1) if executed else '?'} inputs",
                      flush=True)
                if process.returncode != 0:
                    failed += 1
                    print(output[-8000:])
    print(f"== fuzz: {len(targets)} targets, {failed} failed, {time.time() - started:.0f} s", flush=True)
    return [len(targets) - failed, failed, 0]


def start_fuzzer(root, target, seconds, scratch):
    name = target.split(":")[1]
    corpus = os.path.join(scratch, name)
    os.mkdir(corpus)
    return subprocess.Popen(
        [os.path.join(root, "tests", "fuzz", name), f"-max_total_time={seconds}", "-max_len=4096", "-timeout=60", "-rss_limit_mb=4096",
         f"-artifact_prefix={corpus}/", "-print_final_stats=1", corpus],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    full = parser.parse_args().full
    sums = [0, 0, 0]
    for suite in suites(full):
        sums = [a + b for a, b in zip(sums, run_suite(*suite))]
    for path in SCRIPTS_FULL if full else []:
        sums = [a + b for a, b in zip(sums, run_script(path))]
    sums = [a + b for a, b in zip(sums, run_fuzzers(FUZZ_SECONDS_FULL if full else FUZZ_SECONDS))]
    if sums[0] + sums[1] == 0:
        sums[1] = 1
    print(f"{sums[0]} passed, {sums[1]} failed" + (f", {sums[2]} skipped" if sums[2] else ""))
    sys.exit(1 if sums[1] else 0)


if __name__ == "__main__":
    main()
