#!/bin/sh
# Runs the report of a GPU from the kit that this file is part of. It needs CPython, and neither network nor compiler.
#
#   sh run.sh SCRATCH [--libraries DIR]... [--tests] [OPTION...]
#
# SCRATCH      a directory to unpack the kit into; the report goes to SCRATCH/report unless -o names another one
# --libraries  where `pip install --target DIR` has put onnxruntime-gpu or tensorrt, if Python does not find them
# --tests      run the tests that need a GPU instead; options are then those of pytest
# OPTION       of the report, as --stage NAME, --minutes N, -o DIR, or --driver DIR to rehearse without a GPU
#
# The environment variable PYTHON names the interpreter (else python3).
set -eu

fail() {
  echo "run.sh: $1" >&2
  exit 2
}

# Each part of the archive is there and whole.
verify() {
  while read -r sum name; do
    [ -f "$here/$name" ] || fail "$here/$name is missing: copy it again"
    found=$(sha256sum < "$here/$name")
    [ "${found%% *}" = "$sum" ] || fail "$here/$name is damaged (its SHA-256 is not that in kit.sha256): copy it again"
  done < "$here/kit.sha256"
}

# Unpacks into $kit, which appears by one rename: a run that is cut off, or another one beside it, leaves no half of it.
unpack() {
  verify
  unfinished=$kit.$$
  trap 'rm -rf "$unfinished"' EXIT
  trap 'exit 130' HUP INT TERM
  mkdir -p "$unfinished" || fail "$unfinished cannot be made: choose another directory"
  (cd "$here" && cut -c 67- kit.sha256 | xargs cat) | tar -xzof - -C "$unfinished" \
    || fail "the kit cannot be unpacked into $unfinished: is the disk full, or kit.sha256 cut off?"
  "$python" -c 'import os, sys; os.rename(*sys.argv[1:])' "$unfinished" "$kit" 2> /dev/null || [ -d "$kit" ] \
    || fail "$kit cannot be made: choose another directory"
  rm -rf "$unfinished"
  trap - EXIT HUP INT TERM
}

main() {
  here=$(cd "$(dirname "$0")" && pwd)
  case ${1:--} in
    -*) fail "name a directory to unpack into first: sh run.sh SCRATCH [--libraries DIR]... [OPTION...]" ;;
  esac
  mkdir -p "$1" || fail "$1 cannot be made: choose another directory"
  scratch=$(cd "$1" && pwd)
  shift
  path='' tests=''
  while :; do
    case ${1:-} in
      --libraries)
        [ -d "${2:-}" ] || fail "--libraries ${2:-}: there is no such directory"
        path=$path$(cd "$2" && pwd):
        shift 2 ;;
      --tests) tests=yes; shift ;;
      *) break ;;
    esac
  done
  python=${PYTHON:-python3}
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') \
    || fail "$python does not run: name CPython's path in the environment variable PYTHON"
  [ -s "$here/kit.sha256" ] || fail "$here/kit.sha256 is missing or empty: copy it again"
  kit=$scratch/kit-$(sha256sum < "$here/kit.sha256" | cut -c 1-12)
  [ -d "$kit" ] || unpack
  [ -d "$kit/python$version" ] \
    || fail "this kit is for $(cd "$kit" && echo python*), and $python is $version: set PYTHON to such a one"
  export PYTHONPATH="$path$kit/app${PYTHONPATH:+:$PYTHONPATH}"
  if [ -n "$tests" ]; then
    export TXPORT_NEEDS_GPU=1 TXPORT_TEST_BUNDLE="$kit/test/bundle"
    exec "$python" -m pytest -c "$kit/pyproject.toml" -m gpu "$@" "$kit/tests/runtime/test_gpu.py"
  fi
  [ -d "$kit/programs" ] && set -- --programs "$kit/programs" "$@"
  exec "$python" -m txport.benchmarks.gpu.report --bundles "$kit/bundles" -o "$scratch/report" "$@"
}

main "$@"
