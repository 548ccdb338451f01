"""The same model on the same samples, one a row and packed: equal losses, and how much sooner the packed run is done.

    compare_padded.py --server 127.0.0.1:7070 --padded padded --packed packed --predicted 2.6

Two feeds of one server hold the same samples, each in one stream, in the same order: one with `strategy:
none` (a row for each sample, the rest of it padding) and one with `strategy: exact`. The padded run gives attention whole rows, as a model without boundaries would. Times are of the processor, not of
the clock, so that a busy machine does not matter. --predicted is what `packctl plan --alpha A --beta 1` prints as speedup; A is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator

import torch

import gpt
import packd


def cost_of_a_token(model: gpt.GPT) -> int:
    """packctl plan's --alpha for this model: what a token costs besides attention, in units of what a pair of tokens costs."""
    width, layers = model.head.in_features, len(model.blocks)
    return round((12 * width * width * layers + width * gpt.VOCABULARY) / (2 * width * layers))


def run(model: gpt.GPT, batches: list[packd.Batch], padded: bool) -> tuple[float, dict[int, float]]:
    """(seconds of processor time, {seq: loss}) of one pass, forward and backward."""
    seconds, losses = 0.0, {}
    for batch in batches:
        tokens, positions, labels = (torch.from_numpy(batch[name].reshape(-1)).long() for name in ("tokens", "positions", "labels"))
        weight = torch.from_numpy(batch["loss_weight"].reshape(-1))
        boundaries = range(0, len(tokens) + 1, batch.width) if padded else batch["cu_seqlens"].tolist()
        if padded:
            positions = torch.arange(batch.width).repeat(batch.rows)
        begin = time.process_time()
        by_token = gpt.token_losses(model(tokens, positions, list(boundaries)), labels) * weight
        (by_token.sum() / batch.loss_denominator).backward()
        seconds += time.process_time() - begin
        model.zero_grad()
        for segment, index in enumerate(batch["sample_index"]):
            if index >= 0:
                first, last = batch["cu_seqlens"][segment:segment + 2]
                losses[int(batch.samples.seq[index])] = float(by_token[first:last].sum())
    return seconds, losses


def fetched(server: str | None, feed: str, rows: int) -> Iterator[packd.Batch]:
    with packd.Job(server, job="compare", feed=feed, rows=rows, reader=True) as job:
        yield from job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=None)
    parser.add_argument("--padded", default="padded", help="feed with strategy: none")
    parser.add_argument("--packed", default="packed", help="feed with strategy: exact")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--width", type=int, default=32, help="of the model")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--predicted", type=float, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    batches = {feed: list(fetched(options.server, feed, options.rows)) for feed in (options.padded, options.packed)}
    model = gpt.GPT(options.width, layers=1, heads=1, longest=batches[options.padded][0].width)

    ratios = []
    run(model, batches[options.packed][:1], padded=False)  # warm
    for _ in range(options.repeat):
        padded_seconds, padded = run(model, batches[options.padded], padded=True)
        packed_seconds, packed = run(model, batches[options.packed], padded=False)
        ratios.append(padded_seconds / packed_seconds)
    assert padded.keys() == packed.keys()
    gap = max(abs(padded[sample] - packed[sample]) / max(1.0, padded[sample]) for sample in padded)
    print(json.dumps({"samples": len(packed), "largest_relative_difference": gap, "measured_speedup": round(statistics.median(ratios), 3),
                      "predicted_speedup": options.predicted, "alpha": cost_of_a_token(model),
                      "padded_rows": sum(len(b["tokens"]) for b in batches[options.padded]),
                      "packed_rows": sum(len(b["tokens"]) for b in batches[options.packed])}))


if __name__ == "__main__":
    main()
