"""A tiny two-tower policy over packed batches: a vision tower with window attention, a decoder with M-RoPE, an action head. Needs torch.

    inputs = packd.adapters.get("qwen2_5_vl")(batch)
    logits, actions = model(inputs, tiny_vla.last_tokens(batch), torch.from_numpy(batch["state"]))   # [T, vocabulary], [N, CHUNK, ACTION]
    loss = tiny_vla.action_loss(actions, batch).sum() / batch.header["step_totals"]["loss"]["action"]["weight"]

N: rows of the sample table. Attention of both towers runs over the batch's boundaries, as variable-length kernels do. With rows=(R, W) the decoder attends
over whole rows of W positions instead, which is what training on padded rows costs; that is right only where a row holds one sample.
"""

from __future__ import annotations

import math
from typing import Any

import robot_samples as robot
import torch
from torch import nn
from torch.nn import functional


def last_tokens(batch: Any) -> torch.Tensor:
    """int64 [N]: place of each sample's last token in the flattened batch."""
    last = torch.zeros(len(batch.samples), dtype=torch.long)
    for start, length, row in zip(batch["cu_seqlens"].tolist(), batch["seq_lens"].tolist(), batch["sample_index"].tolist()):
        if row >= 0:
            last[row] = start + length - 1
    return last


def action_loss(actions: torch.Tensor, batch: Any) -> torch.Tensor:
    """[N]: squared error of each sample's chunk, steps past the episode's end weighing nothing; divide the sum by the step's weight."""
    error = (actions - torch.from_numpy(batch["action"]).to(actions.dtype)).square().mean(-1)
    return (error * torch.from_numpy(batch["action_loss_weight"]).to(actions.dtype)).sum(-1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """q, k, v [G, n, heads, dim]."""
    scores = torch.einsum("gqhd,gkhd->ghqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("ghqk,gkhd->gqhd", scores.softmax(-1), v)


class Segments:
    """Boundaries, ready for attention: segments of one length are computed together."""

    def __init__(self, cu_seqlens: torch.Tensor):
        cu, by_length = cu_seqlens.tolist(), {}
        for begin, end in zip(cu[:-1], cu[1:]):
            if end > begin:
                by_length.setdefault(end - begin, []).append(begin)
        self.groups = [torch.tensor(starts)[:, None] + torch.arange(length) for length, starts in by_length.items()]
        self.back = torch.cat([group.reshape(-1) for group in self.groups]).argsort() if self.groups else None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        """q, k, v [T, heads, dim], each position of a segment seeing its own."""
        if self.back is None:
            return v
        return torch.cat([attend(q[group], k[group], v[group], causal).flatten(0, 1) for group in self.groups])[self.back]


class Rows:
    """Whole rows of W positions, whoever shares them."""

    def __init__(self, rows: int, width: int):
        self.shape = (rows, width)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        return attend(*(x.unflatten(0, self.shape) for x in (q, k, v)), causal).flatten(0, 1)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [T, heads, dim] turned by angles [T, dim / 2]."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, angles: torch.Tensor, segments: Segments | Rows) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        x = x + self.out(segments(rotate(q, angles), rotate(k, angles), v, self.causal).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


def frequencies(count: int) -> torch.Tensor:
    """Of rotary positions, float64 [count]."""
    return 100.0 ** -(torch.arange(count, dtype=torch.float64) / count)


def patch_places(grid_thw: torch.Tensor) -> torch.Tensor:
    """int64 [P, 2]: row and column of each patch, those of a merged token after one another."""
    places = [torch.zeros(0, 2, dtype=torch.long)]
    for frames, height, width in grid_thw.tolist():
        grid = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1)
        grid = grid.reshape(height // robot.SIDE, robot.SIDE, width // robot.SIDE, robot.SIDE, 2).transpose(1, 2).reshape(-1, 2)
        places.append(grid.repeat(frames, 1))
    return torch.cat(places)


class Vision(nn.Module):
    """Patches to merged tokens: a block within windows, a block within images, a merger."""

    def __init__(self, width: int, heads: int, out: int):
        super().__init__()
        self.pairs = width // heads // 2
        self.embed = nn.Linear(robot.PIXELS, width)
        self.windowed, self.whole = Block(width, heads, False), Block(width, heads, False)
        self.merge = nn.Linear(robot.MERGE * width, out)

    def forward(self, inputs: dict[str, Any]) -> torch.Tensor:
        """[M, out]"""
        x = self.embed(inputs["pixel_values"].to(self.embed.weight.dtype))
        places = patch_places(inputs["image_grid_thw"]).double()
        half = frequencies(self.pairs // 2)
        angles = torch.cat([places[:, :1] * half, places[:, 1:] * half], -1)
        order = (inputs["window_index"].long()[:, None] * robot.MERGE + torch.arange(robot.MERGE)).reshape(-1)
        x = self.windowed(x[order], angles[order], Segments(inputs["cu_window_seqlens"]))[order.argsort()]
        x = self.whole(x, angles, Segments(inputs["vision_cu_seqlens"]))
        return self.merge(x.reshape(-1, robot.MERGE * x.shape[-1]))


class TinyVla(nn.Module):
    """See the module. width: the decoder's; the vision tower has half of it."""

    def __init__(self, width: int = 64, layers: int = 3, heads: int = 4, seed: int = 0, dtype: torch.dtype = torch.float32):
        super().__init__()
        torch.manual_seed(seed)
        self.width, self.depth, self.pairs = width, layers, width // heads // 2
        self.vision = Vision(width // 2, heads // 2, width)
        self.tokens = nn.Embedding(robot.VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, robot.VOCABULARY)
        self.act = nn.Sequential(nn.Linear(width + robot.STATE, width), nn.GELU(), nn.Linear(width, robot.CHUNK * robot.ACTION))
        self.to(dtype)

    def angles(self, position_ids: torch.Tensor) -> torch.Tensor:
        """[T, pairs] of M-RoPE: pair i turns by row i % 3 of positions [3, 1, T]."""
        rows = torch.arange(self.pairs) % 3
        return position_ids[rows, 0].double().T * frequencies(self.pairs)

    def forward(self, inputs: dict[str, Any], last: torch.Tensor, state: torch.Tensor,
                rows: tuple[int, int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        ids = inputs["input_ids"][0]
        x = self.tokens(ids)
        x = x.index_put((ids.eq(robot.IMAGE).nonzero()[:, 0],), self.vision(inputs))
        angles, segments = self.angles(inputs["position_ids"]), Rows(*rows) if rows else Segments(inputs["cu_seq_lens_q"])
        for block in self.blocks:
            x = block(x, angles, segments)
        x = self.norm(x)
        actions = self.act(torch.cat([x[last], state.to(x.dtype)], -1))
        return self.head(x), actions.unflatten(-1, (robot.CHUNK, robot.ACTION))
