#!/usr/bin/env bash
# Runs a test file with the system's Python, where Debian's grpcio and numpy are, from the top of the runfiles.
# The package packd and the tests' support are found beside it.
export PYTHONPATH=$PWD/client/python:$PWD/tests/integration:$PWD/tests/python
exec /usr/bin/python3 -B "$@"
