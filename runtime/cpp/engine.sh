#!/usr/bin/env bash
# engine.sh FOLDER [CMAKE_OPTION ...]: builds FOLDER/libtxport_engine.so, the fused CPU engine alone, for Python.
#
# Needs a C++ compiler, cmake, nlohmann-json and libmd (nlohmann-json3-dev, libmd-dev), and Google Highway: HIGHWAY_ROOT, or what
# `make cpp` got, or what is installed. Where one of them is missing it says so and builds nothing, since all else of txport does
# without. The library depends on nothing but glibc. A second call compiles only what was changed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
log=$folder.log

give_up() {
  rm -f "$folder"/libtxport_engine.so*
  echo "== The fused engine is not built: $1. txport runs without it, by ONNX Runtime"
  exit 0
}

for program in cmake c++; do
  command -v "$program" > /dev/null || give_up "there is no $program"
done
mkdir -p "$folder"
generator=()
if command -v ninja > /dev/null; then generator=(-G Ninja); fi
highway=${HIGHWAY_ROOT:-$(dirname "$folder")/highway}
"$here/highway.sh" "$highway" || true  # it may be installed
if [ -e "$highway/hwy/highway.h" ]; then set -- "-DHIGHWAY_ROOT=$(cd "$highway" && pwd)" "$@"; fi
cmake -S "$here" -B "$folder" "${generator[@]}" -DTXPORT_ENGINE_ONLY=ON "$@" > "$log" 2>&1 \
  || give_up "cmake fails, see $log"
grep -q 'Fused engine: compiled' "$log" || give_up "Google Highway 1.2 is not here, see $log"
echo '== Build the fused engine'
cmake --build "$folder" --target txport_engine >> "$log" 2>&1 || { tail -40 "$log"; exit 2; }
