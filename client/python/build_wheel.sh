#!/usr/bin/env bash
# Builds dist/packd-VERSION-py3-none-PLATFORM.whl, with libpackd.so in it; prints its path.
#
#   client/python/build_wheel.sh [--out DIR]
#
# Needs Debian's python3-pip, python3-setuptools and python3-wheel, nothing from the network. The library in the wheel is linked to
# this system's libgrpc and protobuf-c: the wheel is for machines that have the same (on Debian 12: libgrpc29 and libprotobuf-c1).
set -euo pipefail
out=$PWD/dist
case ${1:-} in
"") ;;
--out) out=$(realpath -m "${2:?--out needs a directory}") ;;
*) sed -n 2,7p "$0" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${PACKD_LIBRARY:-}" ] || (cd "$here/../.." && bazel build --noshow_progress //client:libpackd.so)
trap 'rm -rf "$here/build" "$here/packd.egg-info"' EXIT # setuptools would put what is left there into the next wheel
/usr/bin/python3 -m pip wheel -q --no-deps --no-index --no-build-isolation --disable-pip-version-check -w "$out" "$here"
ls "$out"/packd-*.whl
