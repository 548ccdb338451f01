#!/usr/bin/env bash
# Installs packd as a Debian package would: daemon, command line tool, libpackd with its header and pkg-config file, manual pages,
# completions, systemd unit, an example configuration.
#
#   deploy/install/install.sh [--prefix DIR] [--sysconfdir DIR] [--destdir DIR]      default /usr/local, /etc, nothing
#
# Builds first what is not built (tools/setup.sh build installs what that needs): under sudo as the user who called it, so that bazel's files
# stay his. An existing /etc/packd/packd.yaml is kept. With a prefix below $HOME the example keeps its log in ~/.local/state/packd and opens no
# socket, and no systemd unit of the machine is installed. Afterwards run ldconfig where programs shall find libpackd.
set -euo pipefail
cd "$(dirname "$0")/../.."

prefix=/usr/local sysconfdir=/etc destdir=
while [ $# -gt 0 ]; do
  case $1 in
  --prefix | --sysconfdir | --destdir)
    [ $# -gt 1 ] || { echo "install.sh: $1 needs a value" >&2; exit 2; }
    declare "${1#--}=$2"
    shift 2
    ;;
  -h | --help) sed -n 2,9p "$0"; exit 0 ;;
  *) echo "install.sh: unknown argument '$1'; see deploy/install/install.sh --help" >&2; exit 2 ;;
  esac
done
case $prefix$sysconfdir in /*) ;; *) echo "install.sh: --prefix and --sysconfdir are absolute paths" >&2; exit 2 ;; esac

bin=${PACKD_BIN:-bazel-bin} # where the built files are
as_caller=()
[ "$(id -u)" != 0 ] || [ "${SUDO_USER:-root}" = root ] || as_caller=(sudo -H -u "$SUDO_USER")
[ -n "${PACKD_BIN:-}" ] || "${as_caller[@]}" bazel build --noshow_progress //server:packd //server:packd_replay //client:packctl //client:libpackd.so //server:reference
to=$destdir$prefix
libdir=lib/$(gcc -print-multiarch)

put() { install -D -m "$1" "$2" "$3"; }

version=$("$bin/server/packd" --version | awk '{print $2}')
put 0755 "$bin/server/packd" "$to/bin/packd"
put 0755 "$bin/server/packd_replay" "$to/bin/packd_replay"
put 0755 "$bin/client/packctl" "$to/bin/packctl"
put 0644 "$bin/client/libpackd.so" "$to/$libdir/libpackd.so.0"
ln -sfn libpackd.so.0 "$to/$libdir/libpackd.so"
put 0644 client/include/packd.h "$to/include/packd.h"

generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@version@|$version|" deploy/install/packd.pc.in >"$generated/packd.pc"
put 0644 "$generated/packd.pc" "$to/$libdir/pkgconfig/packd.pc"
sed -e "s|/usr/bin/packd|$prefix/bin/packd|" -e "s|/etc/packd|$sysconfdir/packd|" deploy/systemd/packd.service >"$generated/packd.service"
home=
case $prefix/ in "${HOME:-/nowhere}"/*) home=$HOME ;; esac
[ -n "$home" ] || put 0644 "$generated/packd.service" "$to/lib/systemd/system/packd.service"

deploy/install/man.py --packd "$bin/server/packd" --packctl "$bin/client/packctl" --reference "$bin/server/reference" --out "$generated/man"
for page in "$generated"/man/*; do
  put 0644 "$page" "$to/share/man/man${page##*.}/$(basename "$page")"
done
put 0644 deploy/install/completion.bash "$to/share/bash-completion/completions/packctl"
ln -sfn packctl "$to/share/bash-completion/completions/packd"
put 0644 deploy/install/completion.zsh "$to/share/zsh/site-functions/_packctl"
for page in README.md ARCHITECTURE.md docs/*.md gpu/README.md proto/packd.proto client/examples/*.c; do # as their links go
  put 0644 "$page" "$to/share/doc/packd/$page"
done
config=deploy/packd.yaml
if [ -n "$home" ]; then
  config=$generated/packd.yaml
  sed -e "s|/var/lib/packd|$home/.local/state/packd|" -e 's|, "unix:[^"]*"||' deploy/packd.yaml >"$config"
  install -d "$destdir$home/.local/state"
fi
put 0644 "$config" "$to/share/doc/packd/packd.yaml"
[ -e "$destdir$sysconfdir/packd/packd.yaml" ] || put 0644 "$config" "$destdir$sysconfdir/packd/packd.yaml"
echo "installed packd $version under $to; start it: $prefix/bin/packd --config $sysconfdir/packd/packd.yaml"
