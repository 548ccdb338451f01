"""A tiny GPT over bytes that trains on packed batches: what the other examples share. Needs torch 1.13 or newer, no GPU.

    logits = model(tokens, positions, cu_seqlens)          # [T], [T], boundaries -> [T, vocabulary]
    loss = weighted_loss(logits, labels, loss_weight)      # a sum: divide by batch.loss_denominator, once

The model works on the flattened batch. Attention runs segment by segment over cu_seqlens, as a variable-length kernel does, so
that padding and neighbours cost nothing and reach nobody.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256  # bytes


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: list[int]) -> torch.Tensor:
    """Causal attention within each segment; q, k, v [T, heads, dim]."""
    parts = []
    for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:]):
        one, two, three = (x[begin:end].transpose(0, 1) for x in (q, k, v))  # [heads, n, dim]
        if hasattr(functional, "scaled_dot_product_attention"):
            out = functional.scaled_dot_product_attention(one, two, three, is_causal=True)
        else:
            later = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
            scores = (one @ two.transpose(1, 2) / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf)
            out = scores.softmax(-1) @ three
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cu_seqlens: list[int]) -> torch.Tensor:
        q, k, v = (part.reshape(len(x), self.heads, -1) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        x = x + self.out(attention(q, k, v, cu_seqlens).reshape(len(x), -1))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Embeddings, blocks, a head; `longest` is the feed's seq_len."""

    def __init__(self, width: int = 32, layers: int = 2, heads: int = 2, longest: int = 1024, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, cu_seqlens: list[int]) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, cu_seqlens)
        return self.head(self.norm(x))


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy by position, [T]; labels unshifted: position t's logits predict the label at t + 1."""
    moved = torch.full_like(labels, -100)
    moved[:-1] = labels[1:]
    losses = functional.cross_entropy(logits, moved, ignore_index=-100, reduction="none")
    return torch.cat([losses.new_zeros(1), losses[:-1]])  # back to the label's own place, where loss_weight is


def weighted_loss(logits: torch.Tensor, labels: torch.Tensor, loss_weight: torch.Tensor) -> torch.Tensor:
    """sum(loss_weight * loss) over the batch."""
    return (token_losses(logits, labels) * loss_weight).sum()
