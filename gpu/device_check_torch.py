"""The shapes of device_check, run by PyTorch and, where it can be imported, flash-attn.

    device_check_torch.py SHAPES     one line each: length head_dim causal tokens seconds_of_ours

Prints TFLOP/s side by side. Needs torch with CUDA; says so and ends well where it is missing.
"""

import sys


def seconds_per_run(torch, run):
    """Median of five groups of runs of at least 10 ms, after a warm-up."""
    runs, groups = 1, []
    while len(groups) < 6:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(runs):
            run()
        end.record()
        end.synchronize()
        ms = start.elapsed_time(end)
        if ms < 10 and runs < 100000:
            runs *= 8 if ms < 1 else 2
        else:
            groups.append(ms * 1e-3 / runs)
    return sorted(groups[1:])[2]


def sdpa_seconds(torch, length, dim, causal, tokens):
    shape = (tokens // length, 2048 // dim, length, dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    return seconds_per_run(torch, lambda: attention(q, k, v, is_causal=causal))


def flash_seconds(torch, flash, length, dim, causal, tokens):
    shape = (tokens, 2048 // dim, dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    cu = torch.arange(0, tokens + 1, length, device="cuda", dtype=torch.int32)
    return seconds_per_run(torch, lambda: flash(q, k, v, cu, cu, length, length, causal=causal))


def tera(length, tokens, causal, seconds):
    return 4.0 * length * tokens * 2048 / (2 if causal else 1) / seconds * 1e-12


def main():
    try:
        import torch
    except ImportError:
        print("\nPyTorch is not installed here: no comparison")
        return
    if not torch.cuda.is_available():
        print("\nPyTorch sees no device: no comparison")
        return
    try:
        from flash_attn import flash_attn_varlen_func as flash
    except Exception as reason:  # built for another torch, or not there
        print(f"\nflash-attn cannot be imported ({type(reason).__name__}): left out")
        flash = None
    print(f"\n   beside PyTorch {torch.__version__}, TFLOP/s")
    print(f"   {'length':>8} {'d':>4} {'mask':>7} {'packd':>9} {'sdpa':>9} {'flash-attn':>11}")
    for line in open(sys.argv[1], encoding="ascii"):
        length, dim, causal, tokens, ours = line.split()
        length, dim, causal, tokens = int(length), int(dim), bool(int(causal)), int(tokens)
        sdpa = tera(length, tokens, causal, sdpa_seconds(torch, length, dim, causal, tokens))
        other = "-"
        if flash:
            seconds = flash_seconds(torch, flash, length, dim, causal, tokens)
            other = f"{tera(length, tokens, causal, seconds):.1f}"
        mine = tera(length, tokens, causal, float(ours))
        mask = "causal" if causal else "full"
        print(f"   {length:8} {dim:4} {mask:>7} {mine:9.1f} {sdpa:9.1f} {other:>11}")


if __name__ == "__main__":
    main()
