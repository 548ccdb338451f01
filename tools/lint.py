#!/usr/bin/env python3
"""Static analysis of packd's C: cppcheck, gcc -fanalyzer, clang-tidy; exits 1 on any finding.

    tools/lint.py [--tool TOOL]... [FILE.c ...]

Without files, every C file of base, packer, server, client and gpu (and of tests/seam and tests/fuzz). .clang-tidy says which checks
clang-tidy makes. A finding that is wrong stands in tools/lint_suppressions.txt with its reason; a line there that fits nothing any more
is a finding, too. CUDA sources and generated code are not looked at.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

FOLDERS = ["base", "packer", "server", "client", "gpu", "tests/seam", "tests/fuzz"]
SUPPRESSIONS = "tools/lint_suppressions.txt"
DEFINES = ["-D_GNU_SOURCE", '-DPD_REVISION="lint"', "-DPD_HAVE_CUDA=0", "-DSMOKE_INPUTS=1"]
INCLUDES = ["-I.", "-Iclient/include"]

# What cppcheck cannot see without the libraries' headers, which it is not given.
CPPCHECK = ["--std=c11", "--enable=warning,performance,portability", "--inline-suppr", "--quiet", "--platform=unix64", "-D__x86_64__",
            "--library=tools/lint_cppcheck.cfg", "--template={file}:{line}: {severity}: {message} [{id}]"]


@dataclasses.dataclass
class Suppression:
    """One line of the list: a pattern of paths, a check, the number of times it was used."""

    line: int
    tool: str
    check: str
    path: str
    used: int = 0


def read_suppressions() -> list[Suppression]:
    """The list; each entry is `TOOL CHECK PATH  reason`. ValueError where a line lacks something."""
    entries = []
    with open(SUPPRESSIONS, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.split(None, 3)
            if len(fields) < 4:
                raise ValueError(f"{SUPPRESSIONS}:{number}: TOOL CHECK PATH and a reason are expected")
            entries.append(Suppression(number, *fields[:3]))
    return entries


def sources() -> list[str]:
    return sorted(path for folder in FOLDERS for path in glob.glob(f"{folder}/**/*.c", recursive=True))


def generate(folder: str) -> None:
    """The headers that protoc-c makes."""
    subprocess.run(["protoc-c", "--proto_path=.", f"--c_out={folder}", *sorted(glob.glob("proto/*.proto"))], check=True)


def run_tool(tool: str, path: str, generated: str) -> str:
    """What one tool says of one file."""
    flags = [*DEFINES, *INCLUDES, f"-I{generated}"]
    if tool == "cppcheck":
        command = ["cppcheck", *CPPCHECK, *flags, path]
    elif tool == "gcc":
        command = ["gcc", "-fanalyzer", "-fdiagnostics-plain-output", "-std=gnu11", "-O2", "-Wall", "-Wextra", *flags, "-c", "-o", "/dev/null", path]
    else:
        command = ["clang-tidy", "--quiet", path, "--", "-std=gnu11", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return done.stdout + (f"{path}:0: error: {tool} ended with {done.returncode} [ended]\n" if done.returncode < 0 else "")


def findings(text: str) -> list[tuple[str, int, str, str]]:
    """(path, line, message, check) of each warning or error, once."""
    found = {}
    kinds = "warning|error|performance|portability"
    for path, line, message, check in re.findall(rf"^(\S+?):(\d+):(?:\d+:)? (?:fatal )?(?:{kinds}): (.*?)(?: \[([^\[\]]+)\])?$", text, re.M):
        path = os.path.relpath(path) if os.path.isabs(path) else path
        found[path, int(line), check] = message
    return [(path, line, message, check or "error") for (path, line, check), message in found.items()]


def suppressed(entries: list[Suppression], tool: str, path: str, check: str) -> bool:
    fits = [e for e in entries if e.tool == tool and e.check in check.split(",") and fnmatch.fnmatch(path, e.path)]
    for entry in fits:
        entry.used += 1
    return bool(fits)


def run_all(tools: list[str], paths: list[str], entries: list[Suppression]) -> int:
    """Prints the findings as they come; their number."""
    count = 0
    with tempfile.TemporaryDirectory(prefix="packd-lint-") as generated, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        generate(generated)
        for tool in tools:
            started = time.time()
            of_tool = set()
            for text in pool.map(lambda path, tool=tool: run_tool(tool, path, generated), paths):
                for path, line, message, check in findings(text):
                    if not suppressed(entries, tool, path, check):
                        of_tool.add(f"{path}:{line}: {message} [{check}]")
            for finding in sorted(of_tool):
                print(f"{tool}: {finding}")
            count += len(of_tool)
            print(f"== {tool}: {len(paths)} files, {len(of_tool)} findings, {time.time() - started:.0f} s", flush=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=["cppcheck", "gcc", "clang-tidy"])
    parser.add_argument("files", nargs="*", metavar="FILE.c")
    arguments = parser.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tools = arguments.tool or ["cppcheck", "gcc", "clang-tidy"]
    entries = read_suppressions()
    count = run_all(tools, arguments.files or sources(), entries)
    for entry in entries if not arguments.files else []:
        if entry.tool in tools and entry.used == 0:
            print(f"{SUPPRESSIONS}:{entry.line}: nothing is found there any more: take the line out")
            count += 1
    print(f"{count} findings")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
