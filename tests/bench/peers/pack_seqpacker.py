"""seqpacker's packing of a list of lengths: its best with the whole list in sight, and its two streaming modes.

    PYTHON pack_seqpacker.py LENGTHS.npy SEQ_LEN

One JSON line: version, rows of {what, fill, samples_s}; fill over all packs, the last ones too. Decisions only.
"""

import importlib.metadata
import json
import sys
import time

import numpy
import seqpacker


def row(what, lengths, seq_len, pack):
    began = time.monotonic()
    packs = pack()
    seconds = time.monotonic() - began
    return {"what": f"seqpacker, {what}", "fill": 100 * int(lengths.sum()) / packs / seq_len, "samples_s": len(lengths) / seconds}


def stream(lengths, seq_len, strategy):
    packer = seqpacker.StreamPacker(capacity=seq_len, strategy=strategy)
    return sum(len(packer.add(length)) for length in lengths.tolist()) + len(packer.finish())


def main():
    lengths, seq_len = numpy.load(sys.argv[1]), int(sys.argv[2])
    rows = [row(f"{strategy}, whole list", lengths, seq_len,
                lambda: len(seqpacker.pack_sequences(lengths, capacity=seq_len, strategy=strategy).bins)) for strategy in ("obfd", "ff")]
    rows += [row(f"{strategy}, streaming", lengths, seq_len, lambda: stream(lengths, seq_len, strategy)) for strategy in ("nf", "hk")]
    print(json.dumps({"version": "seqpacker " + importlib.metadata.version("seqpacker"), "rows": rows}))


main()
