#!/usr/bin/env bash
# Runs a test file with the system's Python, where Debian's grpcio and numpy are, from the top of the runfiles.
# The package packd and the tests' support are found beside it.
# All temporary files go into one directory, removed when the test passes; its path is short, because those of Unix sockets
# have to be, and Bazel's own may be too long.
export PYTHONPATH=$PWD/client/python:$PWD/tests/integration:$PWD/tests/python
TMPDIR=$(mktemp -d /tmp/packd-XXXXXX) || exit 1
export TMPDIR TEST_TMPDIR=$TMPDIR
/usr/bin/python3 -B "$@"
status=$?
if [ "$status" -eq 0 ]; then
    rm -rf "$TMPDIR"
else
    echo "what the test wrote is left in $TMPDIR" >&2
fi
exit "$status"
