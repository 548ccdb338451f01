"""PyTorch's DataLoader with a flattening collator: a batch is some samples one behind the other, no padding, and as long as they happen to be.

Each rank has a DataLoader over its share; a VARIANT is its number of worker processes. The collator makes what transformers'
DataCollatorWithFlattening makes (tokens, labels, positions, boundaries), with NumPy rather than with lists of Python, which is a good deal faster.
"""

import sys

import clients
import numpy


class Shard:
    """Every n-th sample, as a torch data set."""

    def __init__(self, data, rank, ranks):
        self.data, self.rank, self.ranks = data, rank, ranks

    def __len__(self):
        return len(range(self.rank, len(self.data), self.ranks))

    def __getitem__(self, index):
        return self.data[self.rank + index * self.ranks]


def flatten(samples):
    import torch

    lengths = numpy.array([len(sample) for sample in samples])
    ends = numpy.cumsum(lengths)
    tokens = numpy.concatenate(samples)
    labels = tokens.copy()
    labels[ends - lengths] = -100
    positions = numpy.arange(len(tokens), dtype=numpy.int32) - numpy.repeat(ends - lengths, lengths).astype(numpy.int32)
    cu_seqlens = numpy.concatenate([[0], ends]).astype(numpy.int32)
    arrays = {"tokens": tokens, "labels": labels, "positions": positions, "cu_seqlens": cu_seqlens}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def main():
    options = clients.Options(sys.argv[1:])

    def prepare(rank):
        import torch

        torch.set_num_threads(1)
        data = options.data()

        def batches(variant, _):
            loader = torch.utils.data.DataLoader(Shard(data, rank, options.clients), batch_size=options.samples_a_batch(data), collate_fn=flatten,
                                                 num_workers=int(variant))
            return (batch["tokens"].numpy() for batch in loader)

        return batches

    import importlib.metadata

    clients.serve(options, prepare, "torch " + importlib.metadata.version("torch"))


main()
