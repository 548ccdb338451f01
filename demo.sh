#!/usr/bin/env bash
# See packd work, from nothing, in two minutes.
#
#   ./demo.sh                 packs the documentation found on this machine (/usr/share/doc)
#   ./demo.sh FILE|DIR        packs your own: JSON lines, a JSON array, a text file, or a directory of them
#   ./demo.sh --vla           a made-up robot set (three cameras, action chunks): padded, packed, packed without a redundant camera
#   ./demo.sh --json ...      prints the result as one JSON object
#   ./demo.sh --field NAME    the text field of a JSON record; several: NAME,NAME
#   ./demo.sh --seq-len N     positions a packed row (default 4096)
#
# Installs what is missing (Debian packages, with sudo when not root), builds, starts a daemon on free ports, pushes the documents, fetches
# them as four trainer ranks, audits what the ranks received, prints one table, and leaves nothing running.
set -euo pipefail
case " $* " in *" -h "* | *" --help "*) sed -n 2,12p "$0" | sed 's/^# \{0,1\}//'; exit 0 ;; esac
start=$PWD
cd "$(dirname "$0")"
tools/setup.sh build
demo=tools/demo.py
case " $* " in *" --vla "*) demo=tools/demo_vla.py ;; esac
say() { [ -t 2 ] && printf '\r\033[K%s' "$1" >&2 || true; }
say "building packd (the first time takes a minute) ..."
log=$(mktemp)
if ! bazel build --noshow_progress --ui_event_filters=-info //server:packd //client:packctl //client:libpackd.so >"$log" 2>&1; then
  say ""
  cat "$log" >&2
  rm -f "$log"
  echo "demo: the build failed; its output is above" >&2
  exit 1
fi
rm -f "$log"
say ""
exec /usr/bin/python3 -B "$demo" --from "$start" "$@"
