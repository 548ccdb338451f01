"""What the peers' serving programs share: the data, N client processes that receive batches in turns of their own, one JSON line of results.

    PYTHON serve_NAME.py DATA CLIENTS SEQ_LEN RUNS VARIANT ...

DATA holds tokens.npy (int32, no 0 among them) and lengths.npy; samples are cut to SEQ_LEN. A client adds up every token it receives, so all bytes are
touched, and the sum shows whether everything came. A run lasts from the moment at which all clients open their iterator, with libraries imported and
data mapped, until the last client has its last batch. Each program is run by the interpreter that has its library; its VARIANTs, in the same processes one after
the other, have RUNS runs each.
"""

import json
import multiprocessing
import os
import resource
import sys
import threading
import time
import traceback

import numpy

FORK = multiprocessing.get_context("fork")  # before any library with threads is imported
TICK = os.sysconf("SC_CLK_TCK")


class Data:
    """Samples as views of the mapped tokens, cut to `seq_len`."""

    def __init__(self, directory, seq_len):
        self.tokens = numpy.load(os.path.join(directory, "tokens.npy"), mmap_mode="r")
        self.whole = numpy.load(os.path.join(directory, "lengths.npy"))
        self.starts = numpy.concatenate([[0], numpy.cumsum(self.whole)])[:-1]
        self.lengths = numpy.minimum(self.whole, seq_len)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        start = self.starts[index]
        return self.tokens[start:start + self.lengths[index]]

    def sum(self):
        return sum(int(self[i].sum(dtype="int64")) for i in range(len(self)))


class Options:
    def __init__(self, arguments):
        self.directory, clients, seq_len, runs, *self.variants = arguments
        self.clients, self.seq_len, self.runs = int(clients), int(seq_len), int(runs)

    def turns(self):
        return [(variant, run) for variant in self.variants for run in range(self.runs)]

    def data(self):
        return Data(self.directory, self.seq_len)

    def samples_a_batch(self, data, positions=2 * 8192):
        """So that a batch has about as many tokens as packd's."""
        return max(1, round(positions / float(data.lengths.mean())))


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICK  # with children that have ended


def own_cpu():
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def receive(prepare, options, rank, barrier, results):
    """A process: prepare(rank) -> batches(variant, run), an iterator of token arrays, padding 0."""
    try:
        batches = prepare(rank)
        for variant, run in options.turns():
            barrier.wait()
            cpu, total, widths = own_cpu(), 0, []
            for tokens in batches(variant, run):
                total += int(tokens.sum(dtype="int64"))
                widths.append(int(tokens.size))
            results.put({"rank": rank, "end": time.monotonic(), "sum": total, "positions": widths, "cpu_s": own_cpu() - cpu})
            barrier.wait()
    except BaseException:  # whoever waits for this process must not wait for ever
        results.put({"rank": rank, "error": traceback.format_exc()})
        barrier.abort()


def collect(options, variant, run, barrier, results, servers, beside):
    """One run: what the clients report, put together. `beside(variant, run)` works beside them, say a producer; its processor
    time is counted."""
    barrier.wait()
    began, cpu = time.monotonic(), sum(map(cpu_of, servers)) + own_cpu()
    if beside:
        beside(variant, run)
    found = [results.get() for _ in range(options.clients)]
    for one in found:
        if "error" in one:
            raise SystemExit(one["error"])
    used = sum(map(cpu_of, servers)) + own_cpu() - cpu + sum(one["cpu_s"] for one in found)
    barrier.wait()
    steps = list(zip(*(one["positions"] for one in found)))
    return {"seconds": max(one["end"] for one in found) - began, "cpu_s": used, "sum": sum(one["sum"] for one in found),
            "positions": sum(sum(one["positions"]) for one in found), "batches": sum(len(one["positions"]) for one in found),
            "imbalance": sum(max(step) * len(step) / sum(step) for step in steps) / max(len(steps), 1)}


def serve(options, prepare, version, servers=(), beside=None):
    """Runs everything and prints the results. `servers`: processes whose time counts too."""
    barrier, results = FORK.Barrier(options.clients + 1), FORK.Queue()
    processes = [FORK.Process(target=receive, args=(prepare, options, rank, barrier, results), daemon=False) for rank in range(options.clients)]
    for process in processes:
        process.start()
    try:
        runs = {variant: [] for variant in options.variants}
        for variant, run in options.turns():
            runs[variant].append(collect(options, variant, run, barrier, results, servers, beside))
    except threading.BrokenBarrierError:
        raise SystemExit(results.get(timeout=10)["error"]) from None
    finally:
        barrier.abort()
        for process in processes:
            process.join(20)
            process.kill()
    data = options.data()
    expected, tokens = data.sum(), int(data.lengths.sum())
    for run in sum(runs.values(), []):
        if run.pop("sum") != expected:
            raise SystemExit("the tokens received are not those of the data")
        run["tokens"] = tokens
    print(json.dumps({"version": version, "runs": runs}))
    sys.stdout.flush()
