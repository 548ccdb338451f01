#!/usr/bin/env bash
# Builds packd and runs every test; the last line is "N passed, N failed" (", N skipped", ", N flaky").
#
#   ./test.sh           what every change must pass, under 15 minutes on 2 cores
#   ./test.sh --full    adds the long forms of the tests, sanitizer builds, all static analysis, ten minutes of each fuzzer, the image: hours
#
# Either with names of its parts runs these alone: opt lint fuzz, and with --full asan tsan image.
#
# $PACKD_TORCH_PYTHON, where set, is an interpreter with a current torch (and transformers) for the tests that need one; else they are skipped.
# Installs missing Debian packages first (with sudo when not root).
set -uo pipefail
cd "$(dirname "$0")"

full=0
known=" opt lint fuzz "
case ${1:-} in
--full) full=1; known+="asan tsan image "; shift ;;
-h | --help) sed -n 2,10p "$0"; exit 0 ;;
esac
for part in "$@"; do
  [[ $known == *" $part "* ]] || { echo "test.sh: unknown argument '$part'; see ./test.sh --help" >&2; exit 2; }
done

tools/setup.sh $([ $full = 1 ] && echo full || echo test) || { echo "0 passed, 1 failed"; exit 1; }
unset PACKD_FULL
[ $full = 0 ] || export PACKD_FULL=1 # tests with a long form look whether it is set
trainers=${PACKD_VENV:-$HOME/.cache/packd/venv}-trainers/bin/python # made by tools/setup.sh full
if [ $full = 1 ] && [ -z "${PACKD_TORCH_PYTHON:-}" ] && [ -x "$trainers" ]; then export PACKD_TORCH_PYTHON=$trainers; fi
exec tools/run_tests.py $([ $full = 1 ] && echo --full) "$@"
