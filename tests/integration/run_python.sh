#!/usr/bin/env bash
# Runs a test file with the system's Python, where Debian's grpcio and numpy are, from the top of the runfiles.
exec /usr/bin/python3 -B "$@"
