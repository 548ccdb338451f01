"""packd's clients and its producer.

    PYTHON serve_packd.py DATA CLIENTS SEQ_LEN RUNS ADDRESS PID

Two variants: `push`, where every run pushes the data to a feed of its own, to be made durable, packed and served meanwhile; `log`, where every run is
a new job over what feed run0 holds.
"""

import sys

import clients
import packd

ROWS = 2


def main():
    *arguments, address, pid = sys.argv[1:]
    options = clients.Options([*arguments, "push", "log"])

    def prepare(rank):
        def batches(variant, run):
            feed, job = (f"run{run}", "train") if variant == "push" else ("run0", f"again{run}")
            with packd.Job(address, feed=feed, job=job, dp_size=options.clients, dp_rank=rank, rows=ROWS, start="first") as opened:
                for batch in opened:
                    yield batch["tokens"]

        return batches

    data = options.data()

    def push(variant, run):
        if variant != "push":
            return
        with packd.Producer(address, feed=f"run{run}", stream=f"run{run}") as producer:
            producer.put_many(data.tokens, lengths=data.whole)
            producer.end_feed()

    clients.serve(options, prepare, "", servers=[int(pid)], beside=push)


main()
