#!/usr/bin/env bash
# arm64.sh FOLDER PYTHON WHEEL CONSTRAINTS: what both runtimes are built with and run on for 64-bit ARM, on Debian and
# Ubuntu for x86-64.
#
# Installs the cross-compiler and qemu-user (packages.sh), and makes, in FOLDER:
#   sysroot/   the same system's packages for arm64, unpacked: apt resolves them with a state of its own, so that this
#              machine learns of no other architecture; with ONNX Runtime in usr/local and Highway's source in usr/highway
#              (dependencies.sh)
#   venv/      their Python, under qemu, with WHEEL and what it needs, by PYTHON's pip
#   emulated/  the C++ programs under qemu, which release/ will hold: what would run build/cpp/release runs these
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 4 ] || { echo "usage: $0 FOLDER PYTHON WHEEL CONSTRAINTS"; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd) python=$2 wheel=$3 constraints=$4
root=$folder/sysroot
[ "$(uname -m)" = x86_64 ] || { echo "arm64.sh is for x86-64, and this is $(uname -m): on ARM itself use make cpp and make test"; exit 2; }

"$here/packages.sh" g++-aarch64-linux-gnu qemu-user
qemu=$(command -v qemu-aarch64)

# Unpack the packages that are built with (packages.txt, without the tools of the build), and Python.
make_sysroot() {
  local work=$folder/apt packages
  mapfile -t packages < <(grep -E -- '-dev$' "$here/packages.txt"; printf '%s\n' libstdc++6 python3)
  rm -rf "$work" "$root"
  mkdir -p "$work/lists/partial" "$work/archives/partial" "$root"/usr/{bin,lib,sbin}
  touch "$work/status"
  printf '%s;\n' 'APT::Architecture "arm64"' 'APT::Architectures { "arm64"; }' "Dir::State \"$work\"" \
    "Dir::State::status \"$work/status\"" "Dir::Cache \"$work\"" "APT::Sandbox::User \"$(id -un)\"" > "$work/apt.conf"
  {
    APT_CONFIG=$work/apt.conf apt-get -q update &&
      APT_CONFIG=$work/apt.conf apt-get -q install -y --download-only --no-install-recommends "${packages[@]}"
  } > "$work/log" 2>&1 || {
    tail -n 5 "$work/log"
    echo "apt cannot fetch the arm64 packages ${packages[*]}: it needs the network, and among its sources a mirror that has arm64"
    exit 2
  }
  # Packages of before /usr was merged and of after it agree about where files are.
  ln -s usr/bin usr/lib usr/sbin "$root"
  for package in "$work"/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
  done
  rm -rf "$work"
}

# What Linux says on a Jetson Orin, for each processor of this machine: qemu shows this machine's own /proc/cpuinfo, at
# which ONNX Runtime's cpuinfo crashes.
write_cpuinfo() {
  mkdir -p "$root/proc"
  for ((processor = 0; processor < $(nproc --all); processor++)); do
    printf '%s\t: %s\n' processor "$processor" Features 'fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp' \
      'CPU implementer' 0x41 'CPU architecture' 8 'CPU variant' 0x0 'CPU part' 0xd42 'CPU revision' 1
    echo
  done > "$root/proc/cpuinfo"
}

# emulate FILE PROGRAM: an executable FILE that runs PROGRAM; all on one kind of processor, since kernels of another one sum
# in another order. The Cortex-A76 has, as an Orin's A78AE, Armv8.2 with dot products in int8, and no matrix products.
emulate() {
  mkdir -p "$(dirname "$1")"
  printf '#!/bin/sh\nexec "%s" -cpu "${QEMU_CPU:-cortex-a76}" -L "%s" -0 "$0" "%s" "$@"\n' "$qemu" "$root" "$2" > "$1"
  chmod +x "$1"
}

# A virtual environment: Python finds pyvenv.cfg beside the folder of its name, which is the script's.
make_python() {
  emulate "$folder/venv/bin/python" "$root/usr/bin/python3"
  ln -sf python "$folder/venv/bin/python3"
  printf 'home = %s/usr/bin\ninclude-system-site-packages = false\n' "$root" > "$folder/venv/pyvenv.cfg"
}

# By PYTHON's pip, run by the Python that it installs for: that one knows which wheels it takes.
install() {
  "$python" -m pip --disable-pip-version-check --python "$folder/venv/bin/python" install -q --no-compile "$@" \
    || { echo "pip cannot install for arm64: see its message above (pip must be 22.3 or newer: $python -m pip install -U pip)"; exit 2; }
}

[ -e "$root/.ready" ] || { echo '== Unpack arm64 packages'; make_sysroot; touch "$root/.ready"; }
write_cpuinfo
if [ -e "$folder/venv/.ready" ]; then
  make_python
  install --no-deps --force-reinstall "$wheel"
else
  echo '== Set up Python for arm64, under qemu'
  rm -rf "$folder/venv"
  make_python
  install -c "$constraints" "$wheel[ort,trt,test]"
  touch "$folder/venv/.ready"
fi
"$here/dependencies.sh" "$root/usr/local" "$folder/venv/bin/python"
for program in txport-translate txport-bench txport_example_c txport_example_cpp tests/txport_options_door; do
  emulate "$folder/emulated/$program" "$folder/release/$program"
done
ln -sf ../release/libtxport.so "$folder/emulated/libtxport.so"
