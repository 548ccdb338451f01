"""Tiny models for tests of adapters and checks: a transformer and a recurrent layer in torch, one of each in NumPy.

Each takes what says who may see whom as an argument, so that a test can hand it the right thing or a planted fault.
"""

import math

import numpy
import torch
from torch import nn

VOCABULARY = 61


class Transformer(nn.Module):
    """forward(tokens, positions, attend): [N, L] -> logits [N, L, vocabulary]. attend(q, k, v), each [N, L, heads, dim], is the mask."""

    def __init__(self, seed=0, layers=2, heads=2, dim=8, longest=256, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(seed)
        width = heads * dim
        self.heads = heads
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
                                                   "out": nn.Linear(width, width), "up": nn.Linear(width, 4 * width),
                                                   "down": nn.Linear(4 * width, width)}) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)
        self.to(dtype)

    def forward(self, tokens, positions, attend):
        x = self.tokens(tokens) + self.places(positions)
        for layer in self.layers:
            q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in layer["qkv"](layer["norm"](x)).chunk(3, -1))
            x = x + layer["out"](attend(q, k, v).flatten(-2))
            x = x + layer["down"](torch.relu(layer["up"](x)))
        return self.head(x)


def dense(allowed):
    """attend over a bool mask [L, L] or [N, 1, L, L], True where the query may see the key."""
    def attend(q, k, v):
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        return torch.einsum("nhqk,nkhd->nqhd", weights, v)
    return attend


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False, softmax_scale=None):
    """What flash_attn_varlen_func computes, [T, heads, dim], one segment after the other."""
    assert isinstance(max_seqlen_q, int) and isinstance(max_seqlen_k, int) and cu_seqlens_q.dtype == torch.int32
    out, scale = torch.zeros_like(q), softmax_scale or 1 / math.sqrt(q.shape[-1])
    wide = torch.promote_types(q.dtype, torch.float32)  # kernels sum in float32
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    for begin, end in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist()):
        n = min(end - begin, max_seqlen_q)  # the grid of a kernel ends there
        scores = torch.einsum("qhd,khd->hqk", q[begin:begin + n], k[begin:end]) * scale
        if causal:
            scores = scores.masked_fill(~torch.ones(n, end - begin, dtype=torch.bool).tril(), -math.inf)
        out[begin:begin + n] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[begin:end]).to(out.dtype)
    return out


def flattened(varlen_attend):
    """A function over [T, heads, dim] as one over [1, T, heads, dim]."""
    return lambda q, k, v: varlen_attend(q[0], k[0], v[0])[None]


class Recurrent(nn.Module):
    """forward(tokens, seq_idx): a state that decays, reset where seq_idx changes; carry=True plants the fault of never resetting."""

    def __init__(self, seed=0, width=16):
        super().__init__()
        torch.manual_seed(seed)
        self.tokens, self.gate, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens, seq_idx, carry=False):
        x = self.tokens(tokens)
        state, outputs = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            if t and not carry:
                state = state * (seq_idx[:, t] == seq_idx[:, t - 1]).to(x.dtype)[:, None]
            state = torch.sigmoid(self.gate(x[:, t])) * state + x[:, t]
            outputs.append(state)
        return self.head(torch.stack(outputs, 1))


class NumpyAttention:
    """One attention layer in NumPy: (tokens, positions, allowed) -> [N, L, width]."""

    def __init__(self, seed=0, width=8, longest=256):
        random = numpy.random.default_rng(seed)
        self.tokens, self.places = random.normal(size=(VOCABULARY, width)), random.normal(size=(longest, width))
        self.q, self.k, self.v = random.normal(size=(3, width, width)) / width

    def __call__(self, tokens, positions, allowed):
        x = self.tokens[tokens] + self.places[positions]
        scores = numpy.where(allowed, (x @ self.q) @ (x @ self.k).swapaxes(1, 2), -numpy.inf)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ (x @ self.v)


def numpy_recurrent(tokens, segment_ids, carry):
    """A decaying sum of embedded tokens, in NumPy."""
    embedded = numpy.random.default_rng(1).normal(size=(VOCABULARY, 4))[tokens]
    state, out = numpy.zeros_like(embedded[:, 0]), numpy.zeros_like(embedded)
    for t in range(tokens.shape[1]):
        if t and not carry:
            state = state * (segment_ids[:, t] == segment_ids[:, t - 1])[:, None]
        state = 0.5 * state + embedded[:, t]
        out[:, t] = state
    return out


def token_losses(logits, labels, shifted):
    """Cross entropy by position, 0 where there is none; where labels are unshifted, position t's loss is that of predicting token t."""
    logits, labels = logits.reshape(-1, logits.shape[-1]).double(), labels.reshape(-1).long()
    if not shifted:
        logits = torch.cat([logits[:1], logits[:-1]])
    return nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")


def samples(count=9, seed=0, longest=13):
    """Token lists of random lengths from 1."""
    random = numpy.random.default_rng(seed)
    return [random.integers(1, VOCABULARY, random.integers(1, longest + 1)).tolist() for _ in range(count)]
