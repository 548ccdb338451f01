"""How fast a Python loop receives batches, beside a C loop over the same library, the same daemon and the same feed, and beside a bare pipe.

    bazel run //tests/bench:python_bench -- [--mib N] [--rows R] [--rounds N] [--json]

Both add up the tokens of every batch. They take turns, each time as a reader of its own, so that the daemon builds every batch anew for each; the fastest round of
each counts. The bare pipe (pipe_server) sends records of 1 MiB from LMDB to one rank, in the same rounds: what gRPC alone can move. packd's clients ask for the
arrays that cannot be derived and make the rest themselves, so the loop gets more bytes than travel; tokens_over_pipe counts the tokens alone. "put" pushes the same tokens anew by put() and by put_many(). Exit 1 where Python takes more than 15 % longer than C.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time

import numpy

import harness
import packd

LONGER_AT_MOST = 1.15


def c_loop(address, job, rows):
    done = subprocess.run(["tests/bench/fetch_bench", address, job, str(rows)], capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


def python_loop(address, job, rows, tensors):
    with packd.Job(address, job=job, rows=rows, reader=True) as opened:
        total, started, cpu = 0, time.perf_counter(), time.process_time()
        for batch in opened:
            if tensors:
                total += int(batch.torch()["tokens"].sum())
            else:
                total += int(batch["tokens"].sum(dtype="int64"))
        took, cpu = time.perf_counter() - started, time.process_time() - cpu
        info = opened.info
    return {"seconds": took, "cpu_seconds": cpu, "batches": info["batches"], "payload_bytes": info["payload_bytes"], "sum": total}


class Pipe:
    """A pipe_server that holds `mib` MiB."""

    def __init__(self, mib):
        self.directory, self.mib = tempfile.TemporaryDirectory(), mib
        self.process = subprocess.Popen(["tests/bench/pipe_server", "127.0.0.1:0", self.directory.name + "/log", "process"], stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        self.run(1)

    def run(self, producers=0):
        done = subprocess.run(["tests/bench/load", "pipe", self.address, "--producers", str(producers), "--mib", str(self.mib)], capture_output=True, text=True,
                              timeout=600, check=True)
        return json.loads(done.stdout)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.directory.cleanup()


def push(address, values, lengths, stream, many):
    started = time.perf_counter()
    with packd.Producer(address, stream=stream, feed="default" if stream == "s" else "other") as producer:
        if many:
            producer.put_many(values, lengths=lengths)
        else:
            at = 0
            for length in lengths.tolist():
                producer.put(values[at:at + length])
                at += length
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="MiB of tokens")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", action="store_true", help="sum torch tensors instead of NumPy arrays")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = numpy.random.default_rng(1)
    lengths = rng.integers(100, 4000, options.mib * 128)
    lengths = lengths[:int((numpy.cumsum(lengths) <= options.mib << 18).sum())]
    values = rng.integers(1, 30000, int(lengths.sum())).astype("int32")
    feeds = [{"name": name, "seq_len": 4096, "plan_ahead": "64GiB"} for name in ("default", "other")]
    with harness.Daemon(feeds=feeds, extra={"validate": {"fraction": 0}, "log": {"durability": "process"}}) as server:
        put = push(server.address, values, lengths, "t", many=False)
        put_many = push(server.address, values, lengths, "s", many=True)
        server.packctl("end-feed")
        rounds, pipe, piped = {"c": [], "python": []}, Pipe(options.mib), []
        for at in range(options.rounds):
            rounds["c"].append(c_loop(server.address, f"c{at}", options.rows))
            rounds["python"].append(python_loop(server.address, f"p{at}", options.rows, options.torch))
            result = pipe.run()
            piped.append(result["out_bytes"] / result["seconds"] / 2 ** 20)
        pipe.stop()
    assert len({tuple(sorted((k, v) for k, v in r.items() if "seconds" not in k)) for side in rounds.values() for r in side}) == 1, rounds
    middle, cpu = [{side: min(r[what] for r in results) for side, results in rounds.items()}
                   for what in ("seconds", "cpu_seconds")]
    size = rounds["c"][0]["payload_bytes"]
    found = {"tokens": len(values), "samples": len(lengths), "batches": rounds["c"][0]["batches"], "payload_bytes": size,
             "c_mib_per_s": size / middle["c"] / 2 ** 20, "python_mib_per_s": size / middle["python"] / 2 ** 20,
             "pipe_mib_per_s": max(piped), "python_over_pipe": size / middle["python"] / 2 ** 20 / max(piped),
             "tokens_over_pipe": values.nbytes / middle["python"] / 2 ** 20 / max(piped),
             "python_over_c": middle["python"] / middle["c"], "python_over_c_cpu": cpu["python"] / cpu["c"],
             "c_cpu_us_per_batch": cpu["c"] / rounds["c"][0]["batches"] * 1e6, "put_samples_per_s": len(lengths) / put,
             "put_many_samples_per_s": len(lengths) / put_many, "put_mib_per_s": values.nbytes / put / 2 ** 20,
             "put_many_mib_per_s": values.nbytes / put_many / 2 ** 20}
    print(json.dumps(found) if options.json else "\n".join(f"{name:24} {value:.6g}" for name, value in found.items()))
    return found["python_over_c"] > LONGER_AT_MOST


if __name__ == "__main__":
    sys.exit(main())
