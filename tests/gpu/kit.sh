#!/usr/bin/env bash
# Packs what tests/gpu/run.py needs on a machine without network and compiler: kit.sh OUTPUT WHEEL BUNDLES [PROGRAMS]
#
# OUTPUT gets one archive in parts small enough to be copied one by one, and their SHA-256: txport's wheel, what that
# needs on each version of CPython, the tests, a directory of bundles, and the C++ tools of PROGRAMS with the libraries
# that no machine need have. ONNX Runtime and TensorRT are not in it: they belong to the machine's CUDA.
# Weights that follow from names (grown_weights.py) are left out: calls.sh grows them on the machine.
# PYTHONS: versions of CPython; none if the machine has what txport needs.   PYTHON: runs pip.
# ARCHITECTURES: compute capabilities such as "90", for which the chain of kernels is compiled in advance, by nvcc.
# PATTERNS: a directory that patterns/pattern_graphs.py wrote.   ADDED: more packages, without their dependencies.
set -euo pipefail
output=${1:?usage: kit.sh OUTPUT WHEEL BUNDLES [PROGRAMS]} wheel=$2 bundles=$3 programs=${4:-}
root=$(cd "$(dirname "$0")/../.." && pwd) python=${PYTHON:-python3}
ls "$bundles"/*/manifest.json &> /dev/null || { echo "kit.sh: $bundles holds no bundles of tx-export" >&2; exit 2; }
kit=$(mktemp -d) && trap 'rm -rf "$kit"' EXIT
tar -C "$root" -c --exclude=__pycache__ tests pyproject.toml | tar -C "$kit" -x
mkdir "$kit/bundles" && tar -C "$bundles" -ch --exclude=engines . | tar -C "$kit/bundles" -x
[[ -z ${PATTERNS:-} ]] || cp -r "$PATTERNS" "$kit/patterns"
! "$python" -c 'import txport.runtime' 2> /dev/null || "$python" "$root/tests/gpu/grown_weights.py" strip "$kit"/bundles/*

if [ -n "${ARCHITECTURES:-}" ]; then
  # shellcheck disable=SC2086 # words
  "$python" "$root/tests/gpu/chain/chain_compilers.py" "$bundles" "$kit/tests/gpu/chain/cubins" $ARCHITECTURES
fi

"$python" -m zipfile -e "$wheel" "$kit/app"
# Put behind what the machine has, so that its own NumPy or PyTorch is used; PYTHONPATH would put it before.
cat > "$kit/app/sitecustomize.py" << 'CUSTOM'
import os, sys
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(root, "python%d.%d" % sys.version_info[:2]))
CUSTOM
# The wheel's own platform comes last: it may be of a newer glibc, without which it runs, too, but for its fused engine.
platforms=(); for glibc in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${glibc}_$(uname -m)"); done
platform=${wheel##*-}; platforms+=(--platform "${platform%.whl}")
# cuda-bindings 13 wants a driver of 580 or newer, and 12 runs on these too. The last two are pytest's on 3.10: pip looks
# at this interpreter where a requirement names a version of Python.
for version in ${PYTHONS-3.12 3.10}; do
  "$python" -m pip install -q --no-compile --no-warn-conflicts --only-binary=:all: "${platforms[@]}" \
    --python-version "$version" --target "$kit/python$version" "$wheel[trt]" 'pytest>=8' 'rich>=13' 'nvidia-ml-py>=12' \
    'cuda-bindings<13' exceptiongroup tomli
  [[ -z ${ADDED:-} ]] || "$python" -m pip install -q --no-compile --no-deps --only-binary=:all: "${platforms[@]}" \
    --platform any --python-version "$version" --target "$kit/python$version" $ADDED
  rm -rf "$kit/python$version"/txport*  # it is in app/
done

for program in ${programs:+txport-translate txport-bench}; do
  mkdir -p "$kit/programs/lib" && cp "$programs/$program" "$kit/programs/"
  needed=$(ldd "$programs/$program")
  ! grep 'not found' <<< "$needed" || { echo "kit.sh: $programs/$program needs it: install it" >&2; exit 2; }
  # Not those of the system: glibc, and GCC's, which are as new as it.
  awk '$3 ~ /^\// && $1 !~ /^(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so)/ { print $3 }' <<< "$needed" \
    | xargs -r cp -L -t "$kit/programs/lib"
done

mkdir -p "$output" && rm -f "$output"/kit.* && cp "$root/tests/gpu/calls.sh" "$output/"
tar -C "$kit" -cz . | split -b "${PART_BYTES:-48000000}" -d -a 3 - "$output/kit."
(cd "$output" && sha256sum kit.??? > kit.sha256)
du -ch "$output"/kit.??? | tail -1
