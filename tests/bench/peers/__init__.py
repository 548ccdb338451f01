"""packd beside what people use instead, each where it can be installed: the same lists packed, the same samples served to four local clients.

Every program is run by the interpreter that has its library (tools/setup.sh bench makes one each); one that is missing is left out and named. packd's own
rows are measured here, in the same run, on the same cores, with Python clients like the others'.
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy

import packing
from support import Packd, median, program, say

HERE = os.path.dirname(__file__)
VENV = os.environ.get("PACKD_VENV") or os.path.expanduser("~/.cache/packd/venv")
CLIENTS, SEQ_LEN = 4, 8192
PACKING_LISTS = (("gsm8k_train_bytes", 2048), ("gsm8k_train_bytes", 8192), ("debian_docs", 8192))
LIMIT_S = 180

# program, environment of its interpreter (empty: this one), slow: one pass over the samples instead of four; what its variants are
SERVERS = (
    ("serve_torch.py", "", False, {"0": "DataLoader, flattened, in the trainer's process", "1": "DataLoader, flattened, a worker each"}),
    ("serve_grain.py", "grain", True, {"first fit": "Grain, first fit"}),
    ("serve_tensorflow.py", "tensorflow", True, {"padded": "tf.data service, padded batches", "buckets": "tf.data service, sorted into buckets"}),
)
PACKERS = (("seqpacker", "pack_seqpacker.py"), ("grain", "pack_grain.py"))


class Missing(Exception):
    """A peer that is not there or does not run; the text says which and why."""


def interpreter(environment):
    if not environment:
        return sys.executable
    python = os.path.join(f"{VENV}-{environment}", "bin", "python")
    if not os.path.exists(os.path.join(f"{VENV}-{environment}", "complete")):
        raise Missing(f"{environment}: not installed (tools/setup.sh bench says why)")
    return python


def run_program(script, environment, *arguments, **variables):
    """The JSON that it prints at last."""
    command = [interpreter(environment), "-B", os.path.join(HERE, script), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **variables})
    except subprocess.TimeoutExpired:
        raise Missing(f"{script}: not done within {LIMIT_S} s") from None
    if done.returncode != 0:
        raise Missing(f"{script}: ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def list_of(name):
    return numpy.loadtxt(os.path.join("tests", "data", name + ".lengths.txt"), dtype="int64")


# ---- packing ----

def split(lengths, seq_len):
    """As packd splits: parts of seq_len that overlap by a token."""
    parts = []
    for length in lengths.tolist():
        while length > seq_len:
            parts.append(seq_len)
            length -= seq_len - 1
        parts.append(length)
    return numpy.array(parts)


def pack_beside(quick, skipped):
    table = packing.planner_table(1000, fill_only=True)["rows"]
    found = []
    say("| list | L | | fill, points below packd's | fill | samples/s, packd's over it | samples/s |\n|---|---|---|---|---|---|---|")
    for name, seq_len in PACKING_LISTS:
        own = next(row for row in table if (row["law"], row["seq_len"]) == (name, seq_len))
        rows = [{"what": "packd, exact, window of 1,024", "fill": own["exact"], "samples_s": own["million_samples_per_s"] * 1e6}]
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            numpy.save(file, split(list_of(name), seq_len)[:1000 if quick else None])
            file.flush()
            for environment, script in PACKERS:
                try:
                    rows += run_program(script, environment, file.name, seq_len)["rows"]
                except Missing as missing:
                    skipped.add(str(missing))
        for row in rows:
            found.append({"list": name, "seq_len": seq_len, **row})
            say(f"| {name} | {seq_len} | {row['what']} | {own['exact'] - row['fill']:.2f} | {row['fill']:.2f} | "
                f"{rows[0]['samples_s'] / row['samples_s']:.1f} | {row['samples_s']:.0f} |")
    return found


# ---- serving ----

def write_data(directory, lengths):
    rng = numpy.random.default_rng(1)
    os.mkdir(directory)
    numpy.save(os.path.join(directory, "lengths.npy"), lengths)
    numpy.save(os.path.join(directory, "tokens.npy"), rng.integers(1, 30000, int(lengths.sum())).astype("int32"))


def serve_packd(directory, runs):
    feeds = [{"name": f"run{run}", "seq_len": SEQ_LEN, "over_length": "keep_head", "jobs": [{"name": "train"}]} for run in range(runs)]
    with Packd(config={"feeds": feeds}) as packd:
        variables = {"PYTHONPATH": os.path.abspath(os.path.join("client", "python")), "PACKD_LIBRARY": os.path.abspath(program("client", "libpackd.so"))}
        return run_program("serve_packd.py", "", directory, CLIENTS, SEQ_LEN, runs, packd.address, packd.process.pid, **variables)


def rows_of(found, variants):
    """A row for each of the variants {name: what it is}."""
    for variant, what in variants.items():
        runs = found["runs"][variant]
        runs = runs[1:] or runs  # the first one warms up: libraries are opened when they are first used
        yield {"what": what, "version": found["version"], "mtokens_s": median(run["tokens"] / run["seconds"] for run in runs) / 1e6,
               "cpu_us_a_thousand_tokens": median(run["cpu_s"] / run["tokens"] for run in runs) * 1e9,
               "padding": median(1 - run["tokens"] / run["positions"] for run in runs), "imbalance": median(run["imbalance"] for run in runs), "runs": runs}


def serve_beside(name, lengths, directory, runs, skipped):
    long, short = (os.path.join(directory, name + kind) for kind in ("-long", "-short"))
    write_data(short, lengths)
    write_data(long, numpy.tile(lengths, 4))
    rows = list(rows_of(serve_packd(long, runs), {"push": "packd: push, pack, serve", "log": "packd: serve from the log"}))
    for script, environment, slow, variants in SERVERS:
        try:
            rows += rows_of(run_program(script, environment, short if slow else long, CLIENTS, SEQ_LEN, runs, *variants), variants)
        except Missing as missing:
            skipped.add(str(missing))
    for row in rows:
        say(f"| {name} | {row['what']} | {rows[0]['mtokens_s'] / row['mtokens_s']:.2f} | {row['mtokens_s']:.1f} | {row['padding']:.1%} | "
            f"{row['imbalance']:.2f} | {row['cpu_us_a_thousand_tokens']:.1f} | {row['version']} |")
    return [{"data": name, **row} for row in rows]


def measure(quick):
    skipped, runs = set(), 1 if quick else 4
    found = {"packing": pack_beside(quick, skipped), "serving": []}
    say(f"\n{CLIENTS} clients, packs of {SEQ_LEN}, longer samples cut; padding is a share of all positions; imbalance: the largest batch of a step over the mean")
    say("| samples | | packd's push, pack, serve over it | useful M tokens/s | padding | imbalance | CPU us a thousand tokens | |\n|---|---|---|---|---|---|---|---|")
    rng = numpy.random.default_rng(1)
    docs, chats = list_of("debian_docs"), numpy.tile(list_of("gsm8k_train_bytes"), 2)
    with tempfile.TemporaryDirectory(prefix="packd-bench-") as directory:
        for name, lengths in (("gsm8k", rng.permutation(chats)), ("debian docs", rng.permutation(docs)[:len(docs) // 4])):
            if quick:
                lengths = lengths[:len(lengths) // 8]
            found["serving"] += serve_beside(name, lengths, directory, runs, skipped)
    for text in sorted(skipped):
        say(f"SKIPPED {text}")
    return {**found, "skipped": sorted(skipped)}
