"""Grain's packing of a list of lengths, first fit and best fit, with few and with many bins open.

    PYTHON pack_grain.py LENGTHS.npy SEQ_LEN

One JSON line: version, rows of {what, fill, samples_s}. Fill is that of the packs in steady state: the bins that the end of the input empties are left
out, as packd's row leaves out its last window. Grain packs elements, so the rate includes copying their tokens.
"""

import importlib.metadata
import json
import sys
import time

import grain
import numpy

KINDS = {"first fit": grain.experimental.FirstFitPackIterDataset, "best fit": grain.experimental.BestFitPackIterDataset}


class Source:
    def __init__(self, lengths):
        self.lengths, self.tokens = lengths, numpy.ones(int(lengths.max()), numpy.int32)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return {"tokens": self.tokens[:self.lengths[index]]}


def measure(kind, bins, lengths, seq_len):
    samples = grain.MapDataset.source(Source(lengths)).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    packed = KINDS[kind](samples, length_struct={"tokens": seq_len}, num_packing_bins=bins, shuffle_bins=False)
    began = time.monotonic()
    used = [int(numpy.count_nonzero(pack["tokens"])) for pack in packed]
    seconds = time.monotonic() - began
    steady = used[:-bins] or used
    return {"what": f"Grain, {kind}, {bins} bins", "fill": 100 * sum(steady) / len(steady) / seq_len, "samples_s": len(lengths) / seconds}


def main():
    lengths, seq_len = numpy.load(sys.argv[1]), int(sys.argv[2])
    rows = [measure(kind, bins, lengths, seq_len) for kind, bins in (("first fit", 32), ("best fit", 256))]
    print(json.dumps({"version": "grain " + importlib.metadata.version("grain"), "rows": rows}))


main()
