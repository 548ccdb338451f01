"""Trains the tiny GPT with DDP on packed batches: gradient accumulation, checkpoints, and resume in a world of another size.

    torchrun --nproc_per_node 2 train_ddp.py --server 127.0.0.1:7070 --step-packs 8 --rows 2 --checkpoint tiny.pt

A step is --step-packs packs, whatever the world: the number of micro-steps follows from it. So a run that is killed and started again
with more or fewer processes sees the same samples in every step and divides by the same number. With the same number of processes
it computes the same bits.

Prints one JSON line a step and rank: step, loss (of the whole step, the same on all ranks), denominator, samples of this rank.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import gpt
import packd.torch


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=None)
    parser.add_argument("--job", default="tiny-gpt")
    parser.add_argument("--step-packs", type=int, default=8, help="packs of an optimiser step, over all ranks and micro-steps")
    parser.add_argument("--rows", type=int, default=2, help="packs of a rank in a micro-step")
    parser.add_argument("--seq-len", type=int, default=1024, help="the feed's seq_len")
    parser.add_argument("--width", type=int, default=64, help="of the model")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--checkpoint", type=Path, required=True, help="written every --every steps, loaded where it exists")
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--steps", type=int, default=None, help="stop after so many; else at the feed's end")
    parser.add_argument("--rendezvous", default="env://", help="init_method of torch.distributed")
    return parser.parse_args()


def save(path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, data: packd.torch.PackedDataset) -> None:
    """The whole state in one file that is either the old one or the new one."""
    part = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "data": data.state_dict()}, part)
    os.replace(part, path)


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        raise SystemExit("train_ddp.py: no RANK: start it with torchrun --nproc_per_node 2 train_ddp.py ..., which gives each process its rank")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", init_method=options.rendezvous, rank=rank, world_size=world)
    accum, left = divmod(options.step_packs, world * options.rows)
    if left or not accum:
        raise SystemExit(f"--step-packs {options.step_packs} is no multiple of {world} ranks x {options.rows} rows")

    data = packd.torch.PackedDataset(options.server, job=options.job, rows=options.rows, accum=accum, steps=options.steps,
                                     world_token=packd.torch.world_token())
    model = DistributedDataParallel(gpt.GPT(options.width, options.layers, longest=options.seq_len))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        data.load_state_dict(saved["data"])

    total, samples = torch.zeros((), dtype=torch.float64), []
    for batch in torch.utils.data.DataLoader(data, batch_size=None):
        last = batch.last_of_step
        model.require_backward_grad_sync = last  # gradients are summed over the ranks once a step
        logits = model(batch["tokens"].reshape(-1).long(), batch["positions"].reshape(-1).long(), batch["cu_seqlens"].tolist())
        loss = gpt.weighted_loss(logits, batch["labels"].reshape(-1).long(), batch["loss_weight"].reshape(-1)) / batch.loss_denominator
        (loss * world).backward()  # DDP divides by the number of ranks
        total += loss.detach()
        samples += [[sample.stream, sample.seq, sample.part] for sample in batch.header["samples"]]
        if not last:
            continue
        optimiser.step()
        optimiser.zero_grad()
        torch.distributed.all_reduce(total)
        print(json.dumps({"step": batch.step, "rank": rank, "loss": float(total), "denominator": batch.loss_denominator,
                          "samples": samples}), flush=True)
        total, samples = torch.zeros((), dtype=torch.float64), []
        if (batch.step + 1) % options.every == 0:
            if rank == 0:
                save(options.checkpoint, model.module, optimiser, data)
                data.commit()
            torch.distributed.barrier()  # nobody runs ahead of a checkpoint that is not there


if __name__ == "__main__":
    main()
