#!/usr/bin/env bash
# Builds packd and runs every test; the last line is "N passed, N failed" (", N skipped", ", N flaky").
#
#   ./test.sh           what every change must pass, under 15 minutes on 2 cores
#   ./test.sh --full    adds the long forms of the tests, sanitizer builds, all static analysis, ten minutes of each fuzzer, the image: hours
#
# $PACKD_TORCH_PYTHON, where set, is an interpreter with a current torch (and transformers) for the tests that need one; else they are skipped.
# Installs missing Debian packages first (with sudo when not root).
set -uo pipefail
cd "$(dirname "$0")"

full=0
case ${1:-} in
"") ;;
--full) full=1 ;;
-h | --help) sed -n 2,8p "$0"; exit 0 ;;
*) echo "test.sh: unknown argument '$1'; see ./test.sh --help" >&2; exit 2 ;;
esac

tools/setup.sh $([ $full = 1 ] && echo full || echo test) || { echo "0 passed, 1 failed"; exit 1; }
unset PACKD_FULL
[ $full = 0 ] || export PACKD_FULL=1 # tests with a long form look whether it is set
trainers=${PACKD_VENV:-$HOME/.cache/packd/venv}-trainers/bin/python # made by tools/setup.sh full
if [ $full = 1 ] && [ -z "${PACKD_TORCH_PYTHON:-}" ] && [ -x "$trainers" ]; then export PACKD_TORCH_PYTHON=$trainers; fi
exec tools/run_tests.py $([ $full = 1 ] && echo --full)
