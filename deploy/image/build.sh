#!/usr/bin/env bash
# Builds packd's image with buildah, where no container engine and no registry is at hand: the base is made with debootstrap, every step
# runs in a chroot. Needs root and the Debian packages buildah and debootstrap.
#
#   deploy/image/build.sh [--tag NAME] [--base IMAGE] [--archive FILE]
#
#   --tag NAME      name of the image, default packd:latest
#   --base IMAGE    take this base instead of making one
#   --archive FILE  also save the image as an OCI archive
set -euo pipefail
cd "$(dirname "$0")/../.."

tag=packd:latest base= archive=
while [ $# -gt 0 ]; do
  case $1 in
  --tag | --base | --archive) [ $# -gt 1 ] || { echo "build.sh: $1 needs a value" >&2; exit 2; }; declare "${1#--}=$2"; shift 2 ;;
  -h | --help) sed -n 2,9p "$0"; exit 0 ;;
  *) echo "build.sh: unknown argument '$1'; see deploy/image/build.sh --help" >&2; exit 2 ;;
  esac
done
for tool in buildah debootstrap; do
  command -v "$tool" >/dev/null || { echo "build.sh: $tool is missing: apt-get install buildah debootstrap" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "build.sh: run it as root: debootstrap and chroot isolation need it" >&2; exit 1; }

export BUILDAH_ISOLATION=chroot
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT

# An image of a minimal Debian 12 with this machine's package sources, so that a mirror set up here is used inside too.
make_base() {
  local root=$scratch/root container
  debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >"$scratch/debootstrap.log" 2>&1 ||
    { tail -n 5 "$scratch/debootstrap.log" >&2; exit 1; }
  rm -f "$root/etc/apt/sources.list"
  cp -aL /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
  cp -aL /usr/share/keyrings/. "$root/usr/share/keyrings/" 2>/dev/null || true
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" 2>/dev/null || true
  rm -rf "$root"/var/cache/apt/archives/*.deb
  container=$(buildah from scratch)
  buildah add -q "$container" "$root" / >/dev/null
  buildah commit -q --rm "$container" localhost/packd-base:12 >/dev/null
}

if [ -z "$base" ]; then
  base=localhost/packd-base:12
  buildah inspect --type image "$base" >/dev/null 2>&1 || make_base
fi
buildah build --format docker --layers=false --build-arg BASE="$base" --pull-never -f deploy/Dockerfile -t "$tag" .
[ -z "$archive" ] || buildah push -q "$tag" "oci-archive:$archive:$tag"
echo "built $tag"
