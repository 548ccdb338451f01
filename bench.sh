#!/usr/bin/env bash
# Builds packd and measures it beside the ceilings of this machine and beside its peers; see docs/BENCHMARKS.md.
#
#   ./bench.sh                         everything, about 10 minutes: tables on stdout, JSON in bench/ (results.json: all of it)
#   ./bench.sh --quick                 little data, one run of each, about 2 minutes: whether it works, not how fast
#   ./bench.sh [--quick] SECTION ...   of: packing end-to-end latency restart memory growth append probe python peers
#
# The exit status is 1 where more than two budgets are missed, or one by more than a fifth. Installs missing Debian packages first (with sudo
# when not root), and the peers from PyPI into virtual environments of their own; a peer that cannot be installed is left out by name.
# Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$0")"
case " $* " in *" -h "* | *" --help "*) sed -n 2,10p "$0"; exit 0 ;; esac

tools/setup.sh bench
bazel build -c opt //tests/bench:all //tests/gpu:probe_bench //server:packd //client:packctl //client:libpackd.so
exec /usr/bin/python3 -B tests/bench/bench.py "$@"
