#!/usr/bin/env python3
"""Runs the test suites one after the other and counts their cases; called by test.sh.

A suite is a Bazel configuration over the test targets, or a script. Cases are counted from the logs (cmocka's and unittest's closing
lines); a target that failed without naming a case counts as one failure. Tests that race real processes on a machine they share get a second
attempt: one that needed it counts as flaky, beside its passed cases, with the log of the first attempt in full and its name in the last lines.
The last line is "N passed, N failed[, N skipped][, N flaky]".
"""

import argparse
import dataclasses
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
IMAGE = "tests/deploy/image_test.py"
LINT, LINT_FULL = ["--tool", "cppcheck"], []  # all tools take minutes
LONG_TIMEOUTS = "--test_timeout=900,3600,5400,10800"  # of short, moderate, long and eternal tests, in --full
SECOND_ATTEMPT = "//tests/(integration|hostile|python|deploy).*"  # all others are strict: unit, model, fuzz, fault, gpu, style


@dataclasses.dataclass
class Totals:
    """Cases that passed, failed, were skipped; targets that passed at the second attempt, by name."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    flaky: list[str] = dataclasses.field(default_factory=list)

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped, self.flaky + other.flaky)

    def __str__(self) -> str:
        return (f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")
                + (f", {len(self.flaky)} flaky" if self.flaky else ""))


def parts(full):
    """Names of what there is to run, in this order."""
    return ["opt", "asan", "tsan", "image", "lint", "fuzz"] if full else ["opt", "lint", "fuzz"]


def suites(full):
    """Name, Bazel arguments, targets. Sanitizers see the short forms: the long ones are about time and numbers, and would take days."""
    long_forms = ["--test_env=PACKD_FULL", LONG_TIMEOUTS] if full else []
    yield "opt", ["--test_env=PACKD_TORCH_PYTHON", *long_forms], TARGETS
    if full:
        for sanitizer in ("asan", "tsan"):
            yield sanitizer, [f"--config={sanitizer}", "--build_tests_only"], TARGETS


def log_folder(root, target):
    """Where Bazel keeps what a target's run left, below the folder of all logs."""
    return os.path.join(root, target.replace(":", "/").strip("/"))


def read_text(path):
    """Text of a file; "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def count(text):
    """Totals of the cases that a log names."""
    passed = sum(int(n) for n in re.findall(r"^\[  PASSED  \] (\d+) test", text, re.M))
    failed = sum(int(n) for n in re.findall(r"^\[  FAILED  \] +[^:]*: (\d+) test", text, re.M))
    skipped = sum(int(n) for n in re.findall(r"^\[  SKIPPED \] +[^:]*: (\d+) test", text, re.M))
    for ran, tail in re.findall(r"^Ran (\d+) tests? in [^\n]*\n+(OK[^\n]*|FAILED[^\n]*)", text, re.M):
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors|unexpected successes)=(\d+)", tail))
        omitted = sum(int(n) for n in re.findall(r"skipped=(\d+)", tail))
        passed += int(ran) - bad - omitted
        failed += bad
        skipped += omitted
    return Totals(passed, failed, skipped)


def listed_results(output):
    """Target -> PASSED, FAILED, TIMEOUT, ... from Bazel's closing summary."""
    return dict(re.findall(r"^(//\S+)\s+(?:\(cached\) )?(PASSED|FAILED TO BUILD|NO STATUS|FAILED|TIMEOUT|FLAKY)", output, re.M))


def read_results(results, root):
    """Totals of one suite: what Bazel listed for each target, and the cases in its log. Prints what failed and why a test was skipped."""
    total = Totals()
    skip_notes = []
    for target, result in sorted(results.items()):
        text = read_text(os.path.join(log_folder(root, target), "test.log")) if result not in ("FAILED TO BUILD", "NO STATUS") else ""
        one = count(text)
        if result in ("PASSED", "FLAKY"):
            one.passed += one == Totals()
            one.flaky += [target] if result == "FLAKY" else []
        elif one.failed == 0:
            one.failed = 1
        total += one
        skip_notes += [f"   skipped in {target}: {why.strip()}" for why in re.findall(r"^SKIP: (.*)$", text, re.M)]
        if one.failed:
            print(f"   {target}: {result}, {one.failed} failed")
    for note in skip_notes:
        print(note)
    return total


def print_flaky(targets, root):
    """The failed attempts of targets that passed in the end, in full."""
    for target in targets:
        print(f"== FLAKY {target}: it passed only at another attempt; the log of each that failed:")
        paths = sorted(glob.glob(os.path.join(glob.escape(log_folder(root, target)), "test_attempts", "attempt_*.log")))
        for path in paths:
            print(f"-- {path}\n{read_text(path)}")
        if not paths:
            print("-- there is none")


def run_suite(name, arguments, targets):
    """One Bazel configuration over its targets; Totals."""
    started = time.time()
    print(f"== {name}: bazel test {' '.join(arguments)} {' '.join(targets)}", flush=True)
    process = subprocess.Popen(
        ["bazel", "test", "--keep_going", "--test_summary=short", "--noshow_progress",
         f"--flaky_test_attempts={SECOND_ATTEMPT}@2", *arguments, "--", *targets],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines = []
    for line in process.stdout:
        lines.append(line)
        sys.stdout.write(line)
    process.wait()
    results = listed_results("".join(lines))
    root = os.path.realpath("bazel-testlogs")
    total = read_results(results, root)
    if process.returncode not in (0, 3, 4) or not results:
        total.failed = max(1, total.failed)
        print(f"   bazel exited with {process.returncode}")
    print_flaky(total.flaky, root)
    print(f"== {name}: {len(results)} targets, {total}, {time.time() - started:.0f} s", flush=True)
    return total


def run_script(path):
    """A test that Bazel's sandbox cannot hold, run from the top of the tree; Totals."""
    started = time.time()
    print(f"== {path}", flush=True)
    done = subprocess.run([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    total = count(done.stdout)
    if done.returncode != 0:
        total.failed = max(1, total.failed)
        print(done.stdout[-8000:])
    for why in re.findall(r"^SKIP: (.*)$", done.stdout, re.M):
        print(f"   skipped in {path}: {why.strip()}")
    print(f"== {path}: {total}, {time.time() - started:.0f} s", flush=True)
    return total


def run_lint(arguments):
    """Static analysis: one case, which fails with any finding; Totals."""
    started = time.time()
    print(f"== lint: tools/lint.py {' '.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "tools/lint.py", *arguments], check=False).returncode
    print(f"== lint: {'ok' if status == 0 else 'FAILED'}, {time.time() - started:.0f} s", flush=True)
    return Totals(passed=int(status == 0), failed=int(status != 0))


def run_fuzzers(seconds):
    """Every fuzz target for so many seconds under libFuzzer with sanitizers; Totals of targets."""
    started = time.time()
    print(f"== fuzz: {seconds} s each", flush=True)
    query = subprocess.run(["bazel", "query", "--noshow_progress", "kind(cc_binary, //tests/fuzz:all)"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=False)
    targets = sorted(query.stdout.split())
    build = subprocess.run(["bazel", "build", "--config=fuzz", "--noshow_progress", *targets], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
    if build.returncode != 0 or not targets:
        print(build.stdout[-8000:])
        return Totals(failed=max(1, len(targets)))
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
    return Totals(len(targets) - failed, failed)


def start_fuzzer(root, target, seconds, scratch):
    name = target.split(":")[1]
    corpus = os.path.join(scratch, name)
    os.mkdir(corpus)
    seeds = os.path.join("tests", "fuzz", "corpus", f"{name}.hex")
    for number, line in enumerate(read_text(seeds).splitlines()):
        with open(os.path.join(corpus, f"seed-{number}"), "wb") as file:
            file.write(bytes.fromhex(line))
    return subprocess.Popen(
        [os.path.join(root, "tests", "fuzz", name), f"-max_total_time={seconds}", "-max_len=4096", "-timeout=60", "-rss_limit_mb=4096",
         "-len_control=20", f"-artifact_prefix={corpus}/", "-print_final_stats=1", corpus],
        env={**os.environ, "TEST_TMPDIR": scratch}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("part", nargs="*", help="one of those of parts(); none: all")
    arguments = parser.parse_args()
    full, wanted = arguments.full, arguments.part or parts(arguments.full)
    if unknown := set(wanted) - set(parts(full)):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {' '.join(parts(full))}")
    total = Totals()
    for suite in suites(full):
        if suite[0] in wanted:
            total += run_suite(*suite)
    if "image" in wanted:
        total += run_script(IMAGE)
    if "lint" in wanted:
        total += run_lint(LINT_FULL if full else LINT)
    if "fuzz" in wanted:
        total += run_fuzzers(FUZZ_SECONDS_FULL if full else FUZZ_SECONDS)
    if total.passed + total.failed == 0:
        total.failed = 1
    if total.flaky:
        print(f"{len(total.flaky)} flaky: {', '.join(total.flaky)}, see FLAKY above")
    print(total)
    sys.exit(1 if total.failed else 0)


if __name__ == "__main__":
    main()
