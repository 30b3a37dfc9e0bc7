#!/usr/bin/env bash
# machine.sh SUITE COMMAND...: run COMMAND in a clone of this repository on a bare Debian, such as bookworm or trixie.
#
# The machine has python3 and git: no compiler, no make, no venv, as a new user's. debootstrap makes its root file system
# once, in $BARE_FOLDER/SUITE; a run works in a copy (overlayfs), so that each begins with the same machine. The clone is
# HEAD, so commit first. TXPORT_DATA (default ../shared/data) is copied to /data. BARE_BIND names folders of this
# machine that are visible there, such as local indexes of pip, whose settings are copied. BARE_RUN=NAME keeps the machine
# in $BARE_FOLDER/NAME: another run there fetches HEAD and skips the steps that passed, except those from number FROM on.
# BARE_DEMO is build/demo of an idle machine, for a busy one: see python_developer.sh. UNITY=ON compiles less. Needs root.
set -euo pipefail
suite=$1
shift
top=$(git rev-parse --show-toplevel)
folder=${BARE_FOLDER:-/var/tmp/txport-bare}
base=$folder/$suite

make_base() {
  local mirror
  command -v debootstrap > /dev/null || apt-get install -y -qq debootstrap > /dev/null
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages' | awk '$2 == "Debian" && !seen++ {print $1}')
  mkdir -p "$folder"
  rm -rf "$base.new"
  echo "== A bare Debian, $suite, in $base"
  debootstrap --variant=minbase --include=ca-certificates,python3,git "$suite" "$base.new" "$mirror" > "$base.log" 2>&1 \
    || { tail -n 5 "$base.log"; exit 2; }
  # A user answers yes to the questions of apt.
  echo 'APT::Get::Assume-Yes "true";' > "$base.new/etc/apt/apt.conf.d/00-yes"
  echo force-unsafe-io > "$base.new/etc/dpkg/dpkg.cfg.d/unsafe-io"  # minutes less on a busy disk
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf "$HOME/.config/pip" /etc/apt/apt.conf.d /etc/ssl/certs \
    /usr/local/share/ca-certificates; do
    [ ! -e "$file" ] || { mkdir -p "$base.new$(dirname "$file")" && cp -rL "$file" "$base.new$(dirname "$file")"; } 2> /dev/null || true
  done
  mv "$base.new" "$base"
}

# In a mount namespace of its own: all mounts end with it.
if [ -z "${BARE_INSIDE:-}" ]; then
  [ -e "$base" ] || make_base
  BARE_INSIDE=1 exec unshare --mount --propagation private "$0" "$suite" "$@"
fi
run=$folder/${BARE_RUN:-}
if [ -z "${BARE_RUN:-}" ]; then
  run=$(mktemp -d "$folder/run.XXXX")
  trap 'umount -l "$run/system" && rm -rf "$run"' EXIT
fi
mkdir -p "$run/system" "$run/changes" "$run/work"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$run/changes,workdir=$run/work" "$run/system"
for shared in /dev /proc /sys ${BARE_BIND:-}; do
  mkdir -p "$run/system$shared"
  mount --rbind "$shared" "$run/system$shared"
done
project=$run/system/project
[ -e "$project" ] || git clone -q "$top" "$project"
git -C "$project" fetch -q origin HEAD
git -C "$project" reset -q --hard FETCH_HEAD
data=${TXPORT_DATA:-$top/../shared/data}
[ -e "$run/system/data" ] || [ ! -d "$data" ] || cp -r "$data" "$run/system/data"
[ ! -d "${BARE_DEMO:-}" ] || cp -rT "$BARE_DEMO" "$run/system/demo"
settings=$(env | grep -E '^(FROM=|MINUTES=|UNITY=|PIP_|SSL_CERT|REQUESTS_CA|CURL_CA|https?_proxy=|HTTPS?_PROXY=)' || true)
# shellcheck disable=SC2086
chroot "$run/system" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
  $settings bash -c 'cd /project && exec "$@"' bash "$@"
