#!/bin/sh
# Checks the kernels on a device: right, every planted fault found, how fast. Needs nvcc (and its
# host compiler) alone.
#
#   gpu/device_check.sh              nvcc from PATH or /usr/local/cuda
#   CUDA=/path/to/cuda gpu/device_check.sh
#
# Builds in a temporary folder, runs in under five minutes on one GPU, prints tables for
# docs/BENCHMARKS.md. Exit status 0: all right; 1: something was wrong, or would not build; 2: no
# device. Where Python has torch, the same shapes run through it.
set -eu
cd "$(dirname "$0")/.."

nvcc=${CUDA:+$CUDA/bin/nvcc}
nvcc=${nvcc:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if ! [ -x "$nvcc" ]; then
    echo "device_check: there is no nvcc at $nvcc; set CUDA to the toolkit's folder" >&2
    exit 1
fi
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
export TMPDIR="$build"

pids=
compile() { # compile SOURCE FLAGS...
    source=$1
    shift
    "$nvcc" "$@" -I. -c "$source" -o "$build/$(basename "$source").o" &
    pids="$pids $!"
}
for source in base/err.c base/check.c gpu/attention_ref.c gpu/attention_cpu.c gpu/backend_cpu.c \
    gpu/cpu_levels.c gpu/probe.c gpu/probe_cpu.c gpu/probe_cases.c gpu/selftest.c gpu/validator.c \
    tests/gpu/attention_cases.c; do
    compile "$source" -O3 -Xcompiler -std=gnu11 -D_GNU_SOURCE
done
# the flags of tools/cuda.bzl: a kernel that spills registers does not build
for source in gpu/attention.cu gpu/backend_cuda.cu gpu/device_check.cu; do
    compile "$source" -std=c++17 -O3 -gencode=arch=compute_80,code=sm_80 \
        -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_90,code=compute_90 -Xptxas=--warn-on-spills,--warning-as-error
done
for pid in $pids; do
    wait "$pid" || { echo "device_check: the build failed" >&2; exit 1; }
done
"$nvcc" -cudart=static "$build"/*.o -o "$build/device_check" -lm

status=0
"$build/device_check" "$build/shapes" || status=$?
if [ -s "$build/shapes" ] && command -v python3 >/dev/null; then
    python3 gpu/device_check_torch.py "$build/shapes" || echo "the comparison with PyTorch failed"
fi
exit $status
