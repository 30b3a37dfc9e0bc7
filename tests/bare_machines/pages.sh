# What the ways share: commands are those of the pages, read from their code blocks, so that a page and a way cannot differ.
# shellcheck shell=bash
set -euo pipefail
TIMEFORMAT='   (%0R s, processor %0U s)'

# The command and the output of each step that passed. On a machine that is kept they are not run again, from FROM on.
steps=/var/tmp/steps
number=0
mkdir -p $steps
for file in $(find $steps -name '*.command'); do
  [ "$(basename "$file" .command)" -lt "${FROM:-1000}" ] || rm "$file"
done

# block PAGE TEXT: the first code block of PAGE that contains TEXT.
block() {
  TEXT=$2 awk '
    /^```/ { if (inside && index(code, ENVIRON["TEXT"])) { printf "%s", code; found = 1; exit }; inside = !inside; code = ""; next }
    inside { code = code $0 "\n" }
    END { if (!found) exit 1 }' "$1" || failed "$1 has no block with: $2"
}

# line PAGE TEXT: the first line in a code block of PAGE that begins with TEXT, without its comment.
line() {
  TEXT=$2 awk '/^```/ { inside = !inside }
    inside && index($0, ENVIRON["TEXT"]) == 1 { sub(/ +# .*/, ""); print; found = 1; exit }
    END { if (!found) exit 1 }' "$1" || failed "$1 has no line: $2"
}

failed() {
  echo "FAILED: $*" >&2
  exit 1
}

# passed_before COMMAND...: number the step; it is true if this command has passed as the same step, on this machine.
passed_before() {
  number=$((number + 1))
  output=$steps/$number.output
  echo "== $number: $*"
  [ "$(cat "$steps/$number.command" 2> /dev/null)" = "$*" ] && echo '   (passed before)'
}
passed() { echo "$*" > "$steps/$number.command"; }

# step COMMAND...: run it, show its output and its time. It must succeed, without a traceback.
step() {
  passed_before "$@" && return
  time { "$@" 2>&1 | tee "$output"; } || failed "$*"
  ! grep -q 'Traceback (most recent call last)' "$output" || failed 'a traceback'
  ! grep -q '^CMake Warning' "$output" || failed 'a warning of CMake'
  passed "$@"
}

# paste PAGE TEXT: run the block; paste_line PAGE TEXT [OPTION...]: run the line, with more options.
paste() { step bash -euo pipefail -c "$(block "$1" "$2")"; }
paste_line() { step bash -euo pipefail -c "$(line "$1" "$2") ${*:3}"; }

# paste_python PYTHON PAGE TEXT
paste_python() {
  block "$2" "$3" > pasted.py
  step "$1" pasted.py
}

# expect TEXT...: the output of the last step contains each, wherever CMake breaks its lines.
expect() {
  local text
  for text in "$@"; do
    tr -s '[:space:]' ' ' < "$output" | grep -F -- "$text" > /dev/null || failed "no \"$text\" in the output"
  done
}

# refused CODE SECONDS TEXT COMMAND...: it exits with CODE, within this processor time, with one sentence that contains TEXT.
refused() {
  local code=0 times
  passed_before refused "$@" && return
  times=$({ TIMEFORMAT=%U; time "${@:4}" > "$output" 2>&1 < /dev/null || echo "code $?" >&2; } 2>&1)
  [[ $times != *code* ]] || code=$(sed -n 's/^code //p' <<< "$times")
  cat "$output"
  times=$(sed -n '/^[0-9.]*$/p' <<< "$times")
  echo "   (exit code $code, processor $times s)"
  [ "$code" = "$1" ] || failed "exit code $code instead of $1"
  ! grep -q 'Traceback (most recent call last)' "$output" || failed 'a traceback'
  expect "$3"
  [ "$1" = 130 ] || [ "$(wc -c < "$output")" -lt 1500 ] || failed 'more than a sentence'
  [ "${times%.*}" -lt "$2" ] || failed "it took $times s of the processor instead of $2"
  passed refused "$@"
}
