#!/usr/bin/env bash
# dependencies.sh FOLDER PYTHON [PACKAGE ...]: what the C++ runtime is built with, on Debian and Ubuntu.
#
# Installs the packages of packages.txt, and more that are given (packages.sh), and makes FOLDER/include and FOLDER/lib of
# ONNX Runtime: the library of PYTHON's onnxruntime package, which has no headers, and the headers of Debian's
# libonnxruntime-dev. That package is in Debian 13; on Debian 12 apt fetches this one from there (it is headers only, and
# ONNX Runtime's C API is forward compatible). Not needed where ONNX Runtime is at hand: cmake -DONNXRUNTIME_ROOT=...
# Beside FOLDER it makes highway/, the source that the fused engine needs.
set -euo pipefail
folder=$1 python=$2
shift 2

"$(dirname "$0")/packages.sh" "$@"

library=$("$python" -c 'import glob, os, onnxruntime as o
print(glob.glob(os.path.join(os.path.dirname(o.__file__), "capi", "libonnxruntime.so.*"))[0])')
mkdir -p "$folder/lib"
ln -sf "$library" "$folder/lib/libonnxruntime.so.1"
ln -sf libonnxruntime.so.1 "$folder/lib/libonnxruntime.so"

if [ ! -e "$folder/include/onnxruntime_cxx_api.h" ]; then
  echo '== Headers of ONNX Runtime, from libonnxruntime-dev'
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  apt_options=()
  if ! apt-cache show libonnxruntime-dev > /dev/null 2>&1; then
    # The mirror that this machine's apt uses, in Debian 13's suite; nothing of it is installed or remembered.
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages' | awk '$2 == "Debian" {print $1; exit}')
    [ -n "$mirror" ] || { echo "apt has no libonnxruntime-dev here: get ONNX Runtime's release, and ONNXRUNTIME_ROOT=... make cpp"; exit 2; }
    mkdir -p "$work/lists/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$work/sources.list"
    apt_options=(-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists")
    apt-get -q "${apt_options[@]}" update > /dev/null 2> "$work/apt.log" || { cat "$work/apt.log"; exit 2; }
  fi
  # What apt writes beside errors is that root downloads without its sandbox.
  (cd "$work" && apt-get -q "${apt_options[@]}" download libonnxruntime-dev > /dev/null 2> "$work/apt.log") \
    || { cat "$work/apt.log"; exit 2; }
  dpkg-deb -x "$work"/libonnxruntime-dev*.deb "$work/root"
  rm -rf "$folder/include"
  cp -r "$work/root/usr/include/onnxruntime" "$folder/include"
fi

"$(dirname "$0")/highway.sh" "$(dirname "$folder")/highway" || echo '== The fused engine is left out'
