#!/bin/sh
# Runs a fuzz target under libFuzzer with address and undefined-behaviour sanitizers: tests/fuzz/run.sh NAME [SECONDS]
# The corpus grows in ${PD_CORPUS:-/tmp/packd-fuzz}/NAME; a finding leaves its input there and ends with a non-zero status.
set -eu
name=$1
seconds=${2:-10}
cd "$(dirname "$0")/../.."
corpus=${PD_CORPUS:-/tmp/packd-fuzz}/$name
mkdir -p "$corpus"
bazel ${PD_BAZEL_OPTS:-} build --config=fuzz "//tests/fuzz:$name" >&2
bin=$(bazel ${PD_BAZEL_OPTS:-} info --config=fuzz bazel-bin 2>/dev/null)
exec "$bin/tests/fuzz/$name" -max_total_time="$seconds" -max_len=4096 -timeout=30 \
    -rss_limit_mb=4096 -artifact_prefix="$corpus/" -print_final_stats=1 "$corpus"
