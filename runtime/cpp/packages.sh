#!/usr/bin/env bash
# packages.sh [PACKAGE ...]: install the packages of packages.txt, and more that are given, where they are missing: as
# root or by sudo.
set -euo pipefail

missing=()
while read -r package; do
  [ -z "$package" ] || dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
done < <(grep -v '^#' "$(dirname "$0")/packages.txt"; printf '%s\n' "$@")
if [ ${#missing[@]} -gt 0 ]; then
  echo "== apt install ${missing[*]}"
  # Packages are installed without a question where that was asked for: by root, as in a container, or by this variable.
  if [ "$(id -u)" != 0 ] && [ "${TXPORT_INSTALL_PACKAGES:-}" != 1 ]; then
    echo "Packages are missing: sudo apt install ${missing[*]} (or TXPORT_INSTALL_PACKAGES=1 make ... does it by sudo)"
    exit 2
  fi
  root=()
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2> /dev/null || { echo "Not root, and sudo asks: sudo apt install ${missing[*]}"; exit 2; }
    root=(sudo)
  fi
  "${root[@]}" apt-get -q update > /dev/null
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" > /dev/null \
    || { echo "apt cannot install ${missing[*]}: see its message above"; exit 2; }
fi
