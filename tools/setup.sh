#!/usr/bin/env bash
# Installs what a bare Debian 12 lacks to build and run packd; says nothing and takes no time when all is there.
#
#   tools/setup.sh build|test|full        each includes those before it
#   tools/setup.sh bench                  test, and the peers that ./bench.sh measures beside packd (2 GB)
#
# Uses apt-get, through sudo when not root. What the tests need from PyPI goes into a virtual environment, $PACKD_VENV or ~/.cache/packd/venv;
# without PyPI they are skipped by name.
set -euo pipefail

build=(bazel-bootstrap gcc g++ libc6-dev pkg-config python3 protobuf-compiler protobuf-c-compiler libprotobuf-c-dev libgrpc-dev
  libssl-dev zlib1g-dev libuv1-dev liblmdb-dev libmicrohttpd-dev libyaml-dev libjansson-dev libxxhash-dev libcmocka-dev python3-numpy
  python3-cffi)
test=(python3-grpcio python3-grpc-tools python3-protobuf python3-yaml python3-torch python3-venv python3-pip python3-setuptools
  python3-wheel python3-prometheus-client prometheus chromium groff-base openssl curl clang libclang-rt-14-dev clang-format
  cppcheck)
full=(buildah debootstrap clang-tidy)

case ${1:-build} in
build) want=("${build[@]}") ;;
test | bench) want=("${build[@]}" "${test[@]}") ;;
full) want=("${build[@]}" "${test[@]}" "${full[@]}") ;;
*) sed -n 2,8p "$0" >&2; exit 2 ;;
esac

apt_packages() {
  local missing=() package run=() log
  for package in "${want[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: these packages are missing and there is no sudo to install them: ${missing[*]}" >&2; exit 1; }
    run=(sudo)
  fi
  echo "setup: installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
  log=$(mktemp)
  if ! { "${run[@]}" apt-get update -q && "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "setup: apt-get failed; its last lines are above" >&2
    exit 1
  fi
  rm -f "$log"
}

# A virtual environment with packages that only tests or benchmarks use and Debian lacks.
python_packages() {
  local venv=$1 log
  shift
  [ ! -e "$venv/complete" ] || return 0
  log=$(mktemp)
  if { rm -rf "$venv" && python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check "$@"; } >"$log" 2>&1; then
    touch "$venv/complete"
  else
    tail -n 3 "$log" >&2
    echo "setup: no $* from PyPI: what needs them will be skipped" >&2
  fi
  rm -f "$log"
}

apt_packages
venv=${PACKD_VENV:-$HOME/.cache/packd/venv}
[ "${1:-build}" = build ] || python_packages "$venv" kubernetes-validate==1.37.0
# The trainers' packages as they are today, beside Debian's, for tests/python/current*_test.py. About 6 GB.
[ "${1:-build}" != full ] || python_packages "$venv-trainers" numpy cffi torch torchdata transformers jax pyarrow datasets

# Each in an environment of its own: they want different versions of the same packages, and one that cannot be installed must not take others along.
if [ "${1:-build}" = bench ]; then
  python_packages "$venv-seqpacker" numpy --only-binary=seqpacker seqpacker==0.1.3 # a wheel: its source wants crates
  python_packages "$venv-grain" numpy grain==0.2.18
  python_packages "$venv-tensorflow" numpy tensorflow-cpu==2.21.0
fi
