#!/usr/bin/env bash
# highway.sh FOLDER: the source of Google Highway 1.2.0 in FOLDER, if it is not there yet; the fused CPU engine is
# compiled with it. Needs no root. The file is that of the release, which Debian 13 has, too: apt fetches it from the
# mirror that it uses, or else curl from GitHub. Fails with one sentence where neither can.
set -euo pipefail
folder=$1
[ ! -e "$folder/hwy/highway.h" ] || exit 0
sha256=7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

from_debian() {
  local mirror options
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages' | awk '$2 == "Debian" {print $1; exit}')
  [ -n "$mirror" ] || return 1
  mkdir -p "$work/lists/partial"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$work/sources.list"
  options=(-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
    -o Dir::Cache="$work" -o Debug::NoLocking=1)
  (cd "$work" && apt-get -q "${options[@]}" update && apt-get -q "${options[@]}" source --download-only highway=1.2.0-2 \
    && mv highway_1.2.0.orig.tar.gz highway.tar.gz)
}

from_github() {
  curl -fsSL -m 120 -o "$work/highway.tar.gz" https://github.com/google/highway/archive/refs/tags/1.2.0.tar.gz
}

echo '== Source of Google Highway 1.2.0, for the fused engine'
for from in from_debian from_github; do
  "$from" > "$work/log" 2>&1 || continue
  echo "$sha256  $work/highway.tar.gz" | sha256sum --check --status || continue
  mkdir -p "$folder"
  tar -xzf "$work/highway.tar.gz" -C "$folder" --strip-components 1 --wildcards '*/hwy' '*/LICENSE*'
  exit 0
done
echo 'It cannot be had: neither apt nor curl reaches it. Unpack its release and set HIGHWAY_ROOT'
exit 1
