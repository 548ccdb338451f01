#!/usr/bin/env python3
"""The part of demo.sh behind the build: a daemon, one push, four ranks, an audit, a table."""

import argparse
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKD = os.path.join(TOP, "bazel-bin", "server", "packd")
PACKCTL = os.path.join(TOP, "bazel-bin", "client", "packctl")
RECOUNT = os.path.join(TOP, "tests", "integration", "recount.py")
RANKS = 4
DOCS = "/usr/share/doc"
DOCS_BYTES_MAX = 8 << 20
START_S, STEP_S = 30, 600


class Failed(Exception):
    """The demo cannot go on; the text says why and what to do."""


def tell(text):
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K" + text)
        sys.stderr.flush()


def collect_docs(directory):
    """Copies text documents of this machine, up to DOCS_BYTES_MAX in name order, so that the demo takes the same time everywhere."""
    total = count = 0
    for folder, folders, files in os.walk(DOCS):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)
            try:
                size = os.path.getsize(path)
                if os.path.islink(path) or not 0 < size <= 1 << 20:
                    continue
                with open(path, "rb") as file:
                    data = file.read()
                data.decode()
            except (OSError, UnicodeDecodeError):
                continue
            if b"\0" in data:
                continue
            with open(os.path.join(directory, f"{count:06d}.txt"), "wb") as file:
                file.write(data)
            total += size
            count += 1
            if total >= DOCS_BYTES_MAX:
                return count
    if count == 0:
        raise Failed(f"no text document found under {DOCS}; name a file or a directory: ./demo.sh FILE")
    return count


class Demo:
    def __init__(self, options):
        self.options = options
        self.scratch = tempfile.mkdtemp(prefix="packd-demo-")
        self.children = []
        atexit.register(self.clean)
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, lambda number, frame: sys.exit(128 + number))

    def clean(self):
        for child in self.children:
            if child.poll() is None:
                child.terminate()
        for child in self.children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.scratch, name)

    def feeds(self):
        return [{"name": "default", "seq_len": self.options.seq_len, "over_length": "split"}]

    def start_packd(self):
        with open(self.path("packd.yaml"), "w") as file:
            json.dump({"feeds": self.feeds()}, file)
        ports = self.path("ports.json")
        self.packd = subprocess.Popen(
            [PACKD, "--config", self.path("packd.yaml"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
             "--data-dir", self.path("data"), "--ports-file", ports],
            stderr=open(self.path("packd.log"), "wb"), stdin=subprocess.DEVNULL)
        self.children.append(self.packd)
        end = time.monotonic() + START_S
        while not os.path.exists(ports):
            if self.packd.poll() is not None or time.monotonic() > end:
                raise Failed(f"packd did not start:\n{self.tail()}")
            time.sleep(0.01)
        with open(ports) as file:
            self.address = json.load(file)["grpc"][0]

    def tail(self):
        with open(self.path("packd.log"), errors="replace") as file:
            return "".join(file.readlines()[-20:])

    def packctl(self, *arguments, progress=False):
        done = subprocess.run([PACKCTL, "--server", self.address, "--json", *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=None if progress else subprocess.PIPE, text=True, timeout=STEP_S)
        if done.returncode != 0:
            raise Failed(f"packctl {arguments[0]} failed:\n{done.stderr or ''}{self.tail()}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}

    def start_ranks(self):
        self.ranks = []
        for rank in range(RANKS):
            process = subprocess.Popen(
                [PACKCTL, "--server", self.address, "--json", "fetch", "--job", "demo", "--dp-size", str(RANKS), "--rank", str(rank),
                 "--world", "demo", "--out", self.path("out")],
                stdout=open(self.path(f"rank{rank}.json"), "wb"), stderr=open(self.path(f"rank{rank}.log"), "wb"))
            self.ranks.append(process)
            self.children.append(process)

    def wait_ranks(self):
        for rank, process in enumerate(self.ranks):
            if process.wait(STEP_S) != 0:
                with open(self.path(f"rank{rank}.log"), errors="replace") as file:
                    raise Failed(f"rank {rank} failed:\n{file.read()}")

    def audit(self):
        done = subprocess.run([sys.executable, "-B", RECOUNT, self.path("out")], capture_output=True, text=True, timeout=STEP_S)
        if done.returncode != 0:
            raise Failed(f"the audit of the fetched files failed: {done.stderr}")
        return json.loads(done.stdout)

    def run(self):
        source = self.options.source
        if source is None:
            source = self.path("docs")
            os.mkdir(source)
            tell("reading the documentation of this machine ...")
            collect_docs(source)
        self.start_packd()
        self.start_ranks()
        started = time.monotonic()
        tell("pushing, packing, fetching as four ranks ...")
        field = ["--field", self.options.field] if self.options.field else []
        pushed = self.packctl("push", "--end-feed", *field, source)
        self.wait_ranks()
        seconds = time.monotonic() - started
        tell("auditing every fetched batch ...")
        counted = self.audit()
        status = self.packctl("status")
        self.stop_packd()
        return self.judge(pushed, counted, status, seconds)

    def stop_packd(self):
        self.packd.terminate()
        if self.packd.wait(60) != 0:
            raise Failed(f"packd did not stop cleanly:\n{self.tail()}")
        tell("")

    def judge(self, pushed, counted, status, seconds):
        length = self.options.seq_len
        accepted = int(pushed["samples"]) - int(pushed.get("rejected", 0))
        holes = [f"{name}: seq {v['lowest_seq']}..{v['highest_seq']} but {v['samples']} samples" for name, v in counted["streams"].items()
                 if v["highest_seq"] - v["lowest_seq"] + 1 != v["samples"]]
        served = status["feeds"][0]["served"]
        agree = all(int(served.get(a, 0)) == counted[b] for a, b in
                    (("real", "tokens"), ("tail", "tail_padding"), ("gap", "gap"), ("row_padding", "row_padding")))
        once = counted["samples"] == accepted and not (holes and not int(pushed.get("rejected", 0)))
        return {
            "samples": accepted, "samples_served": counted["samples"], "exactly_once": once,
            "tokens": counted["tokens"], "seq_len": length, "ranks": RANKS,
            "packs": counted["packs"], "steps": counted["steps"], "batches": counted["batches"],
            "padding_before": 1 - counted["tokens"] / (counted["segments"] * length) if counted["segments"] else 0.0,
            "padding_served": counted["padding_rate"], "padding_served_full_steps": counted["padding_rate_full_steps"],
            "rows_saved_factor": counted["segments"] / counted["packs"] if counted["packs"] else 0.0,
            "batches_checked": counted["batches"], "daemon_agrees": agree,
            "seconds": round(seconds, 3), "tokens_per_second": round(counted["tokens"] / seconds) if seconds else 0,
        }


def colours():
    """Bold, green, red and off, or nothing where nobody sees colours."""
    return ("\033[1m", "\033[32m", "\033[31m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("",) * 4


def table(result):
    bold, green, red, off = colours()
    verdict = lambda ok, yes, no: f"{green}{yes}{off}" if ok else f"{red}{no}{off}"  # noqa: E731
    rows = [
        ("samples pushed", f"{result['samples']:,}"),
        ("samples served", f"{result['samples_served']:,}   " + verdict(result["exactly_once"], "each exactly once", "NOT each exactly once")),
        ("tokens", f"{result['tokens']:,}"),
        ("packs (rows)", f"{result['packs']:,} of {result['seq_len']:,} positions"),
        ("steps", f"{result['steps']:,} of {result['ranks']} packs, one for each of {result['ranks']} ranks"),
        ("padding, one sample a row", f"{result['padding_before'] * 100:.2f} %"),
        ("padding served by packd", f"{bold}{result['padding_served_full_steps'] * 100:.3f} %{off}   "
                                    f"({result['padding_served'] * 100:.2f} % with the last, partly filled step)"),
        ("rows saved", f"{result['rows_saved_factor']:.2f} x fewer"),
        ("batches checked", f"{result['batches_checked']:,}   " + verdict(True, "every rule of the batch contract holds", "")),
        ("daemon's own counts", verdict(result["daemon_agrees"], "agree with the files", "DISAGREE with the files")),
        ("time, push to last batch", f"{result['seconds']:.2f} s   {result['tokens_per_second']:,} tokens/s"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}   {value}" for name, value in rows)


def run(demo):
    """What the demo found; ends the program, saying why, where it cannot go on."""
    try:
        return demo.run()
    except (Failed, subprocess.TimeoutExpired) as failed:
        tell("")
        print(f"demo: {failed}", file=sys.stderr)
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(prog="demo.sh", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--field")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--from", dest="start", default=".", help=argparse.SUPPRESS)
    parser.add_argument("source", nargs="?")
    options = parser.parse_args()
    if options.source:
        options.source = os.path.join(options.start, options.source)
        if not os.path.exists(options.source):
            parser.error(f"there is no file or directory '{options.source}'")
    result = run(Demo(options))
    print(json.dumps(result) if options.json else table(result))
    sys.exit(0 if result["exactly_once"] and result["daemon_agrees"] else 1)


if __name__ == "__main__":
    main()
