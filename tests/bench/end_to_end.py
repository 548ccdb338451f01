"""packd beside the bare pipe: the same bytes through the same parts, taking turns; and both beside what the machine's memory and sockets do.

  rate     packd's bytes a second over the pipe's (payload in and out, all acked and all taken)
  CPU      the pipe's processor time a byte over packd's, servers and clients together: what the rate would be on a machine that does nothing else;
           the one to read where the machine is shared
  server   the same of the servers alone
"""

import json
import subprocess

from support import Packd, Pipe, budget, in_turns, load, median, program, say

BUDGET_RATE = 0.60
BASE = {"transport": "tcp", "durability": "process", "producers": 4, "ranks": 1, "sample": 4096, "mib": 256, "runs": 5}
# A feed for a vision-language-action model: patches of 2,352 bytes, four a visual token, so 9,408 bytes a visual token.
MEDIA = {"media": True, "rows": 1, "mib": 768, "runs": 3,
         "feed": {"seq_len": 2048, "window": 128, "positions": "mrope", "max_patches": 16384, "media_tokens": [9]}}
ROWS = {
    "base": {},
    "Unix socket": {"transport": "unix"},
    "fsync": {"durability": "fsync"},
    "1 producer": {"producers": 1},
    "16 producers": {"producers": 16},
    "8 ranks": {"ranks": 8},
    "64 ranks": {"ranks": 64, "mib": 1024, "runs": 3},
    "16 producers, 8 ranks, fsync": {"producers": 16, "ranks": 8, "durability": "fsync"},
    "samples of 64 B": {"sample": 64, "mib": 64, "runs": 3},
    "samples of 1 KiB": {"sample": 1024},
    "samples of 64 KiB": {"sample": 65536},
    "9 KB a visual token": MEDIA,
    "9 KB a visual token, Unix, fsync": {**MEDIA, "transport": "unix", "durability": "fsync"},
    "with the CPU probe": {"probe": True, "mib": 3072, "runs": 3},  # long enough that what it spends ahead of its share is a small part
}


def run_once(server, row):
    with server:
        options = {name: row[name] for name in ("producers", "ranks", "rows", "mib") if name in row}
        return load(server, **options, **({"media": True} if row.get("media") else {"sample": row["sample"]}))


def cpu_of(result):
    return (result["server_cpu_s"] + result["client_cpu_s"]) / result["in_bytes"]


def measure_row(name, changes, quick):
    row = {**BASE, **changes, **({"mib": 64 if changes.get("media") or changes.get("ranks") == 64 else 32, "runs": 1} if quick else {})}
    where = row["transport"], row["durability"]
    pipe, packd = in_turns(row["runs"], lambda: run_once(Pipe(*where), row),
                           lambda: run_once(Packd(*where, feed=row.get("feed"), probe=row.get("probe", False)), row))
    pairs = list(zip(pipe, packd))
    return {"name": name, **row,
            "rate_ratio": median(b["mb_s"] / a["mb_s"] for a, b in pairs),
            "cpu_ratio": median(cpu_of(a) / cpu_of(b) for a, b in pairs),
            "server_cpu_ratio": median(a["server_cpu_s"] / b["server_cpu_s"] for a, b in pairs),
            "pipe_mb_s": median(r["mb_s"] for r in pipe), "packd_mb_s": median(r["mb_s"] for r in packd),
            "packd_mtokens_s": median(r["tokens"] / r["seconds"] for r in packd) / 1e6, "pipe": pipe, "packd": packd}


def ceilings(quick, base, unix):
    """Beside memory and sockets: shares of what a thread that only reads and writes on gets from each kind."""
    runs = [json.loads(subprocess.run([program("tests", "bench", "wire_bench"), "128" if quick else "1024"], check=True, capture_output=True).stdout)
            for _ in range(1 if quick else 3)]
    found = {key: median(run[key] for run in runs) for key in runs[0]}
    say("\nceilings, MB/s in messages of 512 KiB: memcpy {memcpy:.0f}; TCP {tcp_one_hop:.0f} one hop, {tcp_two_hops:.0f} in and out again; "
        "Unix {unix_one_hop:.0f} and {unix_two_hops:.0f}".format(**found))
    for row, kind in ((base, "tcp"), (unix, "unix")):
        if row:
            ceiling = found[f"{kind}_two_hops"]
            shares = {who: row[f"{who}_mb_s"] / ceiling for who in ("packd", "pipe")}
            found[f"shares_of_{kind}"] = shares
            say(f"of {kind} in and out again: pipe {shares['pipe']:.2f}, packd {shares['packd']:.2f}")
    return found


def measure(quick, only=None):
    """`only`: names of rows."""
    table = []
    say("| | rate | CPU | server | packd MB/s | pipe MB/s | packd M tokens/s | |\n|---|---|---|---|---|---|---|---|")
    for name, changes in ROWS.items():
        if only and name not in only:
            continue
        row = measure_row(name, changes, quick)
        row["in_budget"] = row["sample"] >= 1024
        verdict = ("ok" if row["rate_ratio"] >= BUDGET_RATE else "MISSED") if row["in_budget"] else "no budget"
        table.append(row)
        say(f"| {name} | {row['rate_ratio']:.2f} | {row['cpu_ratio']:.2f} | {row['server_cpu_ratio']:.2f} | {row['packd_mb_s']:.0f} | "
            f"{row['pipe_mb_s']:.0f} | {row['packd_mtokens_s']:.1f} | {verdict} |")
    named = {row["name"]: row for row in table}
    found = {"rows": table, "ceilings": ceilings(quick, named.get("base"), named.get("Unix socket"))}
    found["budgets"] = [budget(f"end to end, {row['name']}", row["rate_ratio"], BUDGET_RATE, "of the pipe", True) for row in table if row["in_budget"]]
    return found
