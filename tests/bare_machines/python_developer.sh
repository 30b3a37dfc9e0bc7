#!/usr/bin/env bash
# A Python developer: README.md from its first line to its last, then the pages of the runtime and of the server.
. "$(dirname "$0")/pages.sh"

paste README.md 'apt install make'
paste README.md 'make demo'
# On a busy machine the model learns too little in its 20 minutes, and the demo reports that.
if grep -q 'The model learned too little' "$output" && [ -e /demo ]; then
  rm -rf build/demo
  cp -r /demo build/demo
fi
paste README.md 'See you on 3/14/2025.'
expect 'see you on march fourteenth'
paste README.md 'make wheels'
paste_python build/venv/bin/python README.md 'from txport.runtime import Translator'
expect 'see you at five p m' 'two point five kilograms'

# The environment of README's wheel, on the path as the pages have it.
. env/bin/activate
printf 'See you at 5 pm.\nIt cost $12.50.\n' > input.txt
paste runtime/README.md 'tx-inspect build/demo/bundle --check'
expect 'fused'
[ "$(cat output.txt)" = "$(printf 'see you at five p m\nit cost twelve dollars and fifty cents')" ] || failed 'output.txt'
paste runtime/README.md 'tx-pack build/demo/bundle'
paste_python python runtime/README.md 'options = Options(max_length=100)'
expect 'it cost twelve dollars and fifty cents'
paste_python python runtime/README.md 'beam=4, n_best=3'
expect 'it cost twelve dollars and fifty cents'
paste benchmarks/examples/README.md 'subtitles.py'
expect 'see you at five p m'

# Mistakes: one sentence each, at once.
refused 2 2 'build/nope' tx-translate build/nope input.txt
refused 2 2 'nope.txt' tx-translate build/demo/bundle nope.txt
refused 2 2 'checkpoint' tx-translate build/demo/checkpoint input.txt
refused 2 2 '--sample' tx-translate build/demo/bundle input.txt --top-p 0.9
refused 2 2 '--json' tx-translate build/demo/bundle input.txt --n-best 3
refused 2 2 'No space left' bash -c 'tx-translate build/demo/bundle input.txt > /dev/full'

# The server, with README's command and with that of its page.
apt-get install -qq curl > /dev/null
served() {
  bash -c "exec $1" & server=$!
  for _ in $(seq 100); do ! curl -fs http://127.0.0.1:5000/health/ready || break; sleep 0.2; done
  echo
}
stopped() {
  kill "$server"
  wait "$server" || failed "tx-serve exits with $?"
}
served "$(line README.md 'env/bin/tx-serve')"
step curl -fsS -d q='See you at 5 pm.' http://127.0.0.1:5000/translate
expect 'see you at five p m'
step curl -fsS http://127.0.0.1:5000/
stopped
ln -sfn demo/bundle build/mine-bundle
paste_line runtime/serve/README.md 'pip install'
served "$(line runtime/serve/README.md 'tx-serve en-de=build/mine-bundle')"
paste runtime/serve/README.md 'curl -d q='
expect 'it cost twelve dollars and fifty cents'
stopped

# A unit of systemd needs systemd: what it starts, as an unprivileged user.
step bash -c "$(block runtime/serve/README.md 'cp runtime/serve/tx-serve.service' | grep -v systemctl | grep -v journalctl | sed 's/^cp.*/mkdir -p \/etc\/systemd\/system; &/')"
rm -rf /tmp/bundle
cp -rL build/demo/bundle /tmp/bundle
chmod -R a+rX /tmp/bundle
served "setpriv --reuid=nobody --clear-groups /usr/local/txport/bin/tx-serve /tmp/bundle --port 5000"
step curl -fsS -d q='See you at 5 pm.' http://127.0.0.1:5000/translate
expect 'see you at five p m'
stopped
echo '== The way of a Python developer: passed'
