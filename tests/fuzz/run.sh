#!/bin/sh
# Runs a fuzz target under libFuzzer with address and undefined-behaviour sanitizers: tests/fuzz/run.sh NAME [SECONDS]
# The corpus, begun with corpus/NAME.hex, grows in ${PD_CORPUS:-/tmp/packd-fuzz}/NAME; a finding leaves its input there and ends with a
# non-zero status.
set -eu
name=$1
seconds=${2:-10}
cd "$(dirname "$0")/../.."
corpus=${PD_CORPUS:-/tmp/packd-fuzz}/$name
mkdir -p "$corpus"
python3 - "tests/fuzz/corpus/$name.hex" "$corpus" <<'END'
import os, sys
lines = open(sys.argv[1]).read().split() if os.path.exists(sys.argv[1]) else []
for number, line in enumerate(lines):
    with open(f"{sys.argv[2]}/seed-{number}", "wb") as file:
        file.write(bytes.fromhex(line))
END
bazel ${PD_BAZEL_OPTS:-} build --config=fuzz "//tests/fuzz:$name" >&2
bin=$(bazel ${PD_BAZEL_OPTS:-} info --config=fuzz bazel-bin 2>/dev/null)
TEST_TMPDIR=$(mktemp -d)
export TEST_TMPDIR
trap 'rm -rf "$TEST_TMPDIR"' EXIT
"$bin/tests/fuzz/$name" -max_total_time="$seconds" -max_len=4096 -timeout=60 \
    -rss_limit_mb=4096 -artifact_prefix="$corpus/" -print_final_stats=1 "$corpus"
