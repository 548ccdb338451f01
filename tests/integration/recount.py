#!/usr/bin/env python3
"""Recounts what `packctl fetch --out` wrote, from the files alone: an audit that shares no code with packd.

    recount.py DIR [DIR...]        prints one JSON object; exit 1 when a rule is broken or a sample was served twice

Reads the safetensors files by the format's own definition, checks the batch contract array by array in NumPy, and counts samples, tokens,
packs, steps and padding. With the files of all ranks of one job it also checks that every (stream, seq, part) was served exactly once and
that all ranks ended at the same step.
"""

import argparse
import glob
import json
import os
import re
import struct
import sys

import numpy as np

DTYPES = {"I32": np.int32, "F32": np.float32, "I64": np.int64, "U8": np.uint8}
NAME = re.compile(r"step-(\d{8})-micro-(\d{2,})-rank-(\d{4,})\.safetensors$")


class Broken(Exception):
    """A rule of the batch contract does not hold; the text names the file and the rule."""


def read_safetensors(path):
    """(metadata, {name: array}) of a file."""
    with open(path, "rb") as file:
        raw = file.read()
    (size,) = struct.unpack("<Q", raw[:8])
    table = json.loads(raw[8:8 + size])
    metadata = table.pop("__metadata__", {})
    arrays = {}
    for name, info in table.items():
        begin, end = info["data_offsets"]
        data = raw[8 + size + begin:8 + size + end]
        arrays[name] = np.frombuffer(data, dtype=DTYPES[info["dtype"]]).reshape(info["shape"])
    return metadata, arrays


def need(ok, path, rule):
    if not ok:
        raise Broken(f"{path}: {rule}")


def check_batch(path, arrays, pad_id):
    """The rules of the batch contract that need no plan, vectorised; returns the boundaries and real lengths."""
    tokens = arrays["tokens"]
    rows, width = tokens.shape
    total = rows * width
    flat = {n: arrays[n].reshape(-1) for n in ("tokens", "positions", "segment_ids", "labels", "loss_weight")}
    cu, lens, index = (arrays[n].astype(np.int64) for n in ("cu_seqlens", "seq_lens", "sample_index"))
    steps = np.diff(cu)
    need(cu[0] == 0 and cu[-1] == total and (steps > 0).all(), path, "cu_seqlens starts at 0, increases, ends at T")
    need(np.isin(np.arange(0, total, width), cu).all(), path, "every row start is a boundary")
    need(((lens >= 0) & (lens <= steps)).all(), path, "seq_lens fit their slots")
    start = np.repeat(cu[:-1], steps)
    offset = np.arange(total) - start
    real = offset < np.repeat(lens, steps)
    need((flat["positions"] == offset).all(), path, "positions restart at 0 in every segment")
    new_row = np.concatenate([[True], cu[1:-1] % width == 0])
    number, ids = 0, np.zeros(len(lens), np.int64)
    for s in range(len(lens)):
        number = (0 if new_row[s] else number) + (lens[s] > 0)
        ids[s] = number
    need((flat["segment_ids"] == np.where(real, np.repeat(ids, steps), 0)).all(), path, "segment_ids count segments, 0 on padding")
    need((flat["tokens"][~real] == pad_id).all(), path, "padding holds pad_id")
    need((flat["labels"][~real] == -100).all() and (flat["loss_weight"][~real] == 0).all(), path, "no loss on padding")
    first, last = real & (offset == 0), real & (offset == np.repeat(lens, steps) - 1)
    target = flat["labels"] != -100
    need(not target[first].any() or not target[last].any(), path, "no label crosses a boundary")
    need((flat["loss_weight"][~target] == 0).all(), path, "loss_weight is 0 where there is no label")
    need((index[lens > 0] == np.arange((lens > 0).sum())).all() and (index[lens == 0] == -1).all(), path,
         "sample_index counts real segments")
    return cu, lens, int(target.sum()), float(flat["loss_weight"].astype(np.float64).sum())


class Recount:
    """Running sums over files."""

    def __init__(self):
        self.served = {}
        self.steps = {}
        self.positions = self.real = self.loss_tokens = self.batches = 0
        self.packs = set()
        self.row_padding = self.tail = self.gap = 0
        self.loss_weight = 0.0
        self.ends = {}
        self.by_step = {}

    def add(self, path):
        match = NAME.search(path)
        need(match, path, "the name is step-%08d-micro-%02d-rank-%04d.safetensors")
        step, micro, rank = map(int, match.groups())
        metadata, arrays = read_safetensors(path)
        header = json.loads(metadata["packd"])
        cu, lens, loss_tokens, loss_weight = check_batch(path, arrays, header.get("pad_id", 0))
        need((header["step"], header["micro"], header["dp_rank"]) == (step, micro, rank), path, "the header agrees with the name")
        rows, width = arrays["tokens"].shape
        self.samples(path, header, lens)
        self.padding(path, header, cu, lens, rows, width)
        need(header["batch"]["loss"][0]["count"] == loss_tokens, path, "the header's loss count is the array's")
        need(abs(header["batch"]["loss"][0]["weight"] - loss_weight) <= 1e-6 * max(1, loss_weight), path,
             "the header's loss weight is the array's sum")
        self.loss_tokens += loss_tokens
        self.loss_weight += loss_weight
        self.batches += 1
        self.ends[rank] = max(self.ends.get(rank, -1), step)
        sums = self.by_step.setdefault(step, {"positions": 0, "real": 0})
        sums["positions"] += rows * width
        sums["real"] += int(lens.sum())

    def samples(self, path, header, lens):
        table = header["samples"]
        n = int((lens > 0).sum())
        column = lambda name: table.get(name) or [0] * n  # noqa: E731
        streams = table.get("streams") or [""]
        lengths = column("length")
        need(list(lengths) == lens[lens > 0].tolist(), path, "the sample table's lengths are seq_lens")
        for stream, seq, part, epoch in zip(column("stream"), column("seq"), column("part"), column("epoch")):
            key = (streams[stream], seq, part, epoch)
            need(key not in self.served, path, f"{key} was served before, in {self.served.get(key)}")
            self.served[key] = os.path.basename(path)

    def padding(self, path, header, cu, lens, rows, width):
        real = int(lens.sum())
        row_of = cu[:-1] // width
        real_rows = set(row_of[lens > 0].tolist())
        slots = int(np.diff(cu)[lens > 0].sum())
        row_padding = (rows - len(real_rows)) * width
        tail = rows * width - slots - row_padding
        gap = slots - real
        for name, value in (("real_tokens", real), ("tail_padding", tail), ("gap", gap), ("row_padding", row_padding)):
            need(int(header["batch"].get(name, 0)) == value, path, f"the header's {name} is {value}")
        packs = [p for p in header["packs"] if p >= 0]
        need(len(packs) == len(real_rows) and not self.packs & set(packs), path, "every pack once")
        self.packs |= set(packs)
        self.positions += rows * width
        self.real += real
        self.tail += tail
        self.gap += gap
        self.row_padding += row_padding

    def result(self):
        last = max(self.by_step) if self.by_step else -1
        full = [v for k, v in self.by_step.items() if k != last]
        rate = lambda real, positions: 1 - real / positions if positions else 0.0  # noqa: E731
        streams = {}
        for stream, seq, part, epoch in self.served:
            if part == 0 and epoch == 0:
                streams.setdefault(stream, set()).add(seq)
        return {
            "batches": self.batches, "packs": len(self.packs), "steps": last + 1, "ranks": len(self.ends),
            "samples": sum(1 for k in self.served if k[2] == 0), "segments": len(self.served), "tokens": self.real,
            "positions": self.positions, "tail_padding": self.tail, "gap": self.gap, "row_padding": self.row_padding,
            "padding_rate": rate(self.real, self.positions),
            "padding_rate_full_steps": rate(sum(v["real"] for v in full), sum(v["positions"] for v in full)),
            "loss_tokens": self.loss_tokens, "loss_weight": self.loss_weight,
            "last_step_by_rank": {str(k): v for k, v in sorted(self.ends.items())},
            "streams": {s: {"samples": len(v), "lowest_seq": min(v), "highest_seq": max(v)} for s, v in sorted(streams.items())},
        }


def recount(directories):
    count = Recount()
    paths = sorted(p for d in directories for p in glob.glob(os.path.join(d, "*.safetensors")))
    for path in paths:
        count.add(path)
    if len(set(count.ends.values())) > 1:
        raise Broken(f"ranks ended at different steps: {count.ends}")
    return count.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="+")
    try:
        print(json.dumps(recount(parser.parse_args().directory)))
    except Broken as broken:
        print(f"recount: {broken}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
