"""Grain: each rank reads its share, packs it first-fit into 64 bins at a time, and takes batches of two packs, with segment ids and positions. All in the
rank's own process and thread: on this few cores worker processes would only add copies.
"""

import importlib.metadata
import sys

import clients

BINS, ROWS = 64, 2


class Source:
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"tokens": self.data[index]}


def main():
    options = clients.Options(sys.argv[1:])

    def prepare(rank):
        import grain

        source = grain.MapDataset.source(Source(options.data()))[rank::options.clients]
        samples = source.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))  # reading threads only wait for the interpreter here
        packed = grain.experimental.FirstFitPackIterDataset(samples, length_struct={"tokens": options.seq_len}, num_packing_bins=BINS, shuffle_bins=False)
        return lambda *_: (batch["tokens"] for batch in iter(packed.batch(ROWS)))

    clients.serve(options, prepare, "grain " + importlib.metadata.version("grain"))


main()
