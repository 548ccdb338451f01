#!/usr/bin/env bash
# Builds packd and measures it beside the ceilings of this machine; see docs/BENCHMARKS.md.
#
#   ./bench.sh           tables on stdout, JSON in bench/
#   ./bench.sh --quick   fewer runs and bytes: whether it works, not how fast
#
# Installs missing Debian packages first (with sudo when not root). Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$0")"

quick=0
case ${1:-} in
"") ;;
--quick) quick=1 ;;
-h | --help) sed -n 2,7p "$0"; exit 0 ;;
*) echo "bench.sh: unknown argument '$1'; see ./bench.sh --help" >&2; exit 2 ;;
esac

tools/setup.sh test
bazel build -c opt //tests/bench:all //tests/gpu:probe_bench //server:packd //client:packctl
mkdir -p bench
if [ $quick = 1 ]; then
    runs=1 mib=32 log_mib=32 gib=1 starts=1 samples=200000
else
    runs=5 mib=256 log_mib=256 gib=4 starts=5 samples=2000000
fi
bin=bazel-bin/tests/bench
section() { printf '\n== %s\n' "$1"; }

section "packing: fill and decisions a second"
$bin/planner_bench --samples $samples $([ $quick = 0 ] || echo --fill-only)
section "durable append beside a bare LMDB loop"
$bin/log_bench "${TMPDIR:-/tmp}" $log_mib | tee bench/log.txt
section "end to end beside the bare pipe"
tests/bench/bench.py --runs $runs --mib $mib --json bench/end_to_end.json
section "restart after kill -9"
tests/bench/restart_bench.py --gib $gib --starts $starts --json bench/restart.json
section "attention probe"
bazel-bin/tests/gpu/probe_bench
