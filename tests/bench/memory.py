"""Anonymous memory of packd (mapped pages of the log are not counted): over time in a run and behind it, and with 2,000 idle streams.

The budget is what an empty server of the same parts takes with the same connections (the bare pipe, its calls begun and idle), plus the configured
memory.batches and memory.ingest, plus 64 MiB.
"""

import subprocess

from support import Packd, Pipe, Watch, budget, load, load_command, raise_descriptor_limit, say

MEMORY = {"batches": "128MiB", "ingest": "64MiB"}
CONFIGURED_MIB = 128 + 64
ALLOWED_MIB = 64
MARKS = 12
RUN = {"producers": 16, "ranks": 8, "sample": 4096}


class Held:
    """Idle calls of this many producers, each on a connection of its own, while the block runs."""

    def __init__(self, server, count):
        self.command = load_command(server, producers=count, hold=True)

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "held\n":
            raise SystemExit("bench: the idle calls ended")
        return self

    def __exit__(self, *_):
        self.process.communicate()


def empty_server_mib(connections):
    with Pipe() as pipe, Held(pipe, connections):
        return pipe.anonymous_mib()


def run_and_watch(mib):
    with Packd(feed={"seq_len": 8192}, config={"memory": MEMORY}) as packd:
        before = packd.anonymous_mib()
        with Watch(packd) as watch:
            result = load(packd, **RUN, mib=mib)
        seconds = watch.marks[-1][0]
        return {"mib": mib, "seconds": seconds, "mb_s": result["mb_s"], "before_mib": before, "peak_mib": watch.peak_mib, "end_mib": packd.anonymous_mib(),
                "marks_mib": [max(m for t, m in watch.marks if seconds * i / MARKS <= t <= seconds * (i + 1) / MARKS) for i in range(MARKS)]}


def idle(kind, clients, **config):
    """What idle clients take, and whether work beside them changes it."""
    with kind(**config) as server:
        before = server.anonymous_mib()
        with Held(server, clients):
            held = server.anonymous_mib()
            after = None
            if kind is Packd:
                load(server, producers=1, ranks=1, sample=4096, mib=64)
                after = server.anonymous_mib()
        return {"clients": clients, "before_mib": before, "held_mib": held, "after_work_mib": after, "kib_a_client": (held - before) * 1024 / clients}


def measure(quick):
    raise_descriptor_limit()
    clients = 200 if quick else 2000
    run = run_and_watch(256 if quick else 3072)
    empty = empty_server_mib(RUN["producers"] + RUN["ranks"])
    limit = empty + CONFIGURED_MIB + ALLOWED_MIB
    say(f"peak / budget {run['peak_mib'] / limit:.2f}: anonymous memory at most {run['peak_mib']:.0f} MiB in {run['mib']} MiB of samples, "
        f"{run['end_mib']:.0f} at the end; budget {limit:.0f} = an empty server with 24 connections {empty:.0f} + configured {CONFIGURED_MIB} + {ALLOWED_MIB}")
    say("at most, in each twelfth of the run, MiB: " + " ".join(f"{mark:.0f}" for mark in run["marks_mib"]))
    packd = idle(Packd, clients, feed={"seq_len": 8192}, config={"memory": MEMORY})
    pipe = idle(Pipe, clients)
    idle_limit = pipe["held_mib"] + CONFIGURED_MIB + ALLOWED_MIB
    say(f"{clients} idle streams, a client: packd / pipe {packd['kib_a_client'] / pipe['kib_a_client']:.2f} ({packd['kib_a_client']:.1f} and "
        f"{pipe['kib_a_client']:.1f} KiB); packd {packd['before_mib']:.0f} MiB before, {packd['held_mib']:.0f} with them, {packd['after_work_mib']:.0f} "
        f"behind 64 MiB of others' work; budget {idle_limit:.0f}")
    return {"run": run, "empty_mib": empty, "idle": {"packd": packd, "pipe": pipe},
            "budgets": [budget("anonymous memory in a run, peak", run["peak_mib"], limit, "MiB", False),
                        budget(f"anonymous memory with {clients} idle streams", max(packd["held_mib"], packd["after_work_mib"]), idle_limit, "MiB", False)]}
