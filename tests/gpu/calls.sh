#!/usr/bin/env bash
# One call of the runbook in tests/gpu/README.md: bash calls.sh CALL
#
# CALL: unpack, a, b, c, d, e, f.   Run it in the folder of the parts. $OUT gets what to bring home.
# DRIVER: rehearse over a libcuda.so.1 in this directory.   TRT: the unpacked TensorRT; by default trt/ beside the parts.
set -uo pipefail
call=${1:?usage: calls.sh unpack|a|b|c|d|e|f}
here=$PWD out=${OUT:-$PWD/out} python=${PYTHON:-python3}
trt=${TRT:-$here/trt} rehearsal=(${DRIVER:+--driver "$DRIVER"})
programs=(); [[ ! -d kit/programs ]] || programs=(--programs kit/programs)
export PYTHONPATH=$here/ort:$here/kit/app${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out"

# run NAME BUNDLES OPTION...: steps of run.py, whose results come home as NAME.tgz.
run() {
  local name=$1 bundles=$2; shift 2
  [[ ${#rehearsal[@]} == 0 ]] || set -- "$@" --minutes 120  # a processor is slower, and may be busy
  "${interpreter[@]}" kit/tests/gpu/run.py "runs/$name" --bundles "$bundles" "${rehearsal[@]}" "$@"
  local code=$?
  cp "runs/$name/results.tgz" "$out/$name.tgz"
  [[ $code == 0 ]] || sed -n '/^## Failed/,/^## [^F]/p' "runs/$name/results/report.md" | head -20
  return $code
}
interpreter=("$python")

# CPython 3.10 with TensorRT 8.6, as pack_tensorrt.sh made it; in a rehearsal without it, this Python.
with_tensorrt() {
  if [[ -x $trt/python/bin/python3.10 ]]; then
    export LD_LIBRARY_PATH=$trt/python/lib:$trt/lib:$trt/trt/tensorrt:$trt/site/nvidia/cuda_runtime/lib:${LD_LIBRARY_PATH:-}
    export PYTHONPATH=$trt/site:$trt/trt:$here/kit/app
    interpreter=("$trt/python/bin/python3.10")
  elif [[ ${#rehearsal[@]} == 0 ]]; then
    echo "calls.sh: there is no TensorRT in $trt: unpack it, or leave this call out" >&2; exit 2
  fi
}

# one BUNDLE: a directory that contains this bundle alone.
one() {
  mkdir -p "runs/bundles-$1" && ln -sfn "$here/kit/bundles/$1" "runs/bundles-$1/$1" && echo "runs/bundles-$1"
}

# started NAME COMMAND...: a command that outlives the call; its last line is "ended: CODE".
started() {
  local name=$1; shift
  setsid bash -c '"$@"; echo "ended: $?"' bash "$@" > "runs/$name.log" 2>&1 < /dev/null &
}

builds=(tiny-float32 tiny-float16 tiny-islands demo-float16 base-float16 base-float32)

case $call in
  unpack)
    sha256sum --quiet -c kit.sha256 && mkdir -p kit ort runs && cat kit.[0-9]* | tar xz -C kit || exit
    [[ ! -e ort.tar.zst.00 ]] || cat ort.tar.zst.* | zstd -dc --long=27 | tar x -C ort || exit
    [[ ! -e trt.tar.zst.00 ]] || { mkdir -p "$trt" && cat trt.tar.zst.* | zstd -dc --long=31 | tar x -C "$trt"; } || exit
    "$python" kit/tests/gpu/grown_weights.py grow kit/bundles/* ;;
  a)
    started builds bash "$0" builds
    run main kit/bundles --minutes 3.7 --step environment --step device --step onnxruntime --step cpp "${programs[@]}" ;;
  builds)  # in the background of call a: patterns first, then all bundles side by side
    with_tensorrt
    run patterns "$(one tiny-float32)" --minutes 5 --step device --step patterns
    for bundle in "${builds[@]}"; do
      [[ ! -d kit/bundles/$bundle ]] || run "trt-$bundle" "$(one "$bundle")" --minutes 9 --step tensorrt &
    done
    wait ;;
  b) run main kit/bundles --minutes 2.5 --step training --step model ;;
  c)  # waits for the builds
    for ((second = 0; second < ${WAIT:-200}; second++)); do
      ! grep -q '^ended:' runs/builds.log || break
      sleep 1
    done
    grep -E ' \.\.\. |^ended:|^calls.sh' runs/builds.log
    cp runs/builds.log "$out/"
    grep -q '^ended:' runs/builds.log || echo "the builds have not ended: run call c again, or go on without them"
    ! grep -qE '^calls.sh| \.\.\. (failed|stopped)' runs/builds.log ;;
  d)  # a quiet GPU: ONNX Runtime, then TensorRT
    run main kit/bundles --minutes 2.5 --step figures --lowering ort "${programs[@]}"
    code=$?
    with_tensorrt
    run trt-base-float16 "$(one base-float16)" --minutes 1.5 --step device --step figures --lowering none && exit $code ;;
  e) run base-float32 "$(one base-float32)" --minutes 1.7 --step device --step figures --lowering scatter ;;
  f)
    run main kit/bundles --minutes 1.8 --step memory --step onnxruntime
    code=$?
    tar -C runs -czf "$out/everything.tgz" --exclude=cache --exclude=training --exclude='*.plan' --exclude='bundles-*' .
    exit $code ;;
  *) echo "calls.sh: there is no call $call: choose unpack, a, b, c, d, e or f" >&2; exit 2 ;;
esac
