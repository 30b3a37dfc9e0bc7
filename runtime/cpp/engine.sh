#!/usr/bin/env bash
# engine.sh FOLDER [CMAKE_OPTION ...]: builds FOLDER/libtxport_engine.so, the fused CPU engine alone, for Python; for other
# systems txport_engine.dll or libtxport_engine.dylib.
#
# Takes the machine's C++ compiler, cmake and ninja. What is missing of them comes from PyPI, into tools/ beside FOLDER, by the
# interpreter PYTHON (python3): cmake, ninja, and ziglang, a compiler for every target. TARGET=aarch64-linux-gnu.2.17 names one
# of those (x86_64-windows-gnu, aarch64-macos.11.0): then ziglang compiles in any case. Google Highway is HIGHWAY_ROOT, or comes by highway.sh, or is installed. The
# library needs nothing but the system's C library. A second call compiles only what was changed. Fails with one sentence.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
beside=$(dirname "$folder")
shift
log=$folder.log
target=${TARGET:-}

fail() {
  rm -f "$folder"/libtxport_engine.so* "$folder"/txport_engine.dll "$folder"/libtxport_engine.dylib
  echo "The fused engine cannot be built: $1. FUSED=0 does without it, several times slower" >&2
  exit 2
}

tools=()
for program in cmake ninja; do
  command -v "$program" > /dev/null || tools+=("$program")
done
if [ -z "$target" ] && ! command -v "${CXX:-c++}" > /dev/null; then target=$(uname -m)-linux-gnu.2.17; fi
if [ -n "$target" ]; then tools+=(ziglang); fi
PATH=$PATH:$beside/tools/bin
: > "$log"
if [ ${#tools[@]} -gt 0 ]; then
  missing=()
  for tool in "${tools[@]}"; do [ -e "$beside/tools/.$tool" ] || missing+=("$tool"); done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "== ${missing[*]} from PyPI, to build the fused engine"
    { [ -x "$beside/tools/bin/python" ] || "${PYTHON:-python3}" -m venv "$beside/tools"; } >> "$log" 2>&1 \
      || fail "${PYTHON:-python3} makes no virtual environment for ${missing[*]}, see $log"
    awk -v names=" ${missing[*]} " '/^[a-z]/ { split($1, part, "=="); keep = index(names, " " part[1] " ") } keep' \
      "$here/tools.txt" > "$beside/tools/requirements.txt"
    "$beside/tools/bin/python" -m pip --disable-pip-version-check install -q --no-compile --require-hashes \
      -r "$beside/tools/requirements.txt" >> "$log" 2>&1 \
      || fail "there is no ${missing[*]} here, and pip cannot install it, see $log"
    for tool in "${missing[@]}"; do touch "$beside/tools/.$tool"; done
  fi
fi
compiler=()
if [ -n "$target" ]; then
  # For CMake's own trials, too: zig compiles its C++ library once for each kind of optimisation, and again without -s.
  printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%q\nexec %q -m ziglang c++ -target %s -O2 -s -fno-sanitize=all "$@"\n' \
    "$beside/tools/zig" "$beside/tools/bin/python" "$target" > "$folder.c++"
  chmod +x "$folder.c++"
  compiler=("-DCMAKE_CXX_COMPILER=$folder.c++")
  case $target in
    *-windows-*) system=Windows ;;
    *-macos*) system=Darwin ;;
    *) system=Linux ;;
  esac
  if [ "$system-${target%%-*}" != "$(uname -s)-$(uname -m)" ]; then
    compiler+=("-DCMAKE_SYSTEM_NAME=$system" "-DCMAKE_SYSTEM_PROCESSOR=${target%%-*}")
  fi
fi

highway=${HIGHWAY_ROOT:-$beside/highway}
"$here/highway.sh" "$highway" || true  # it may be installed
if [ -e "$highway/hwy/highway.h" ]; then set -- "-DHIGHWAY_ROOT=$(cd "$highway" && pwd)" "$@"; fi
# CMake refuses a cache that was made elsewhere: the folder was moved or copied.
if [ -e "$folder/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$here" "$folder/CMakeCache.txt"; then
  rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
fi
if command -v ccache > /dev/null; then compiler+=("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"); fi
cmake -S "$here" -B "$folder" -G Ninja -DTXPORT_ENGINE_ONLY=ON "${compiler[@]}" "$@" >> "$log" 2>&1 || fail "cmake fails, see $log"
grep -q 'Fused engine: compiled' "$log" || fail "the source of Google Highway 1.2 cannot be had by apt or curl: unpack it and set HIGHWAY_ROOT"
echo '== Build the fused engine'
if [ -t 1 ]; then  # with ninja's [n/m]
  cmake --build "$folder" || fail "its compiler fails, see above"
  exit
fi
cmake --build "$folder" >> "$log" 2>&1 || { tail -40 "$log"; fail "its compiler fails, see $log"; }
