#!/usr/bin/env bash
# A C++ engineer: runtime/cpp/README.md, a project without ONNX Runtime, an installation, C, C++ and ctypes, and `make cpp-ctest`.
. "$(dirname "$0")/pages.sh"
page=runtime/cpp/README.md
# A bundle that each engine can run. Its golden cases are PyTorch's ids.
bundle=$PWD/tests/data/before_t5/bundle
answer='smallp likes seesp likesvvvi'

# The first row of the page's table; one message names the other packages.
step bash -c "$(grep -om1 'apt install cmake[^`]*' $page)"
refused 1 20 'apt install' cmake -S runtime/cpp -B build/cpp
packages=$(tr -s ' \n' ' ' < "$output" | grep -o 'apt install [^;]*' | sed 's/apt install//')
step apt-get install -qq --no-install-recommends $packages
refused 1 20 'TXPORT_WITH_ORT=OFF' cmake -S runtime/cpp -B build/cpp
refused 1 20 'has no include' cmake -S runtime/cpp -B build/cpp -DONNXRUNTIME_ROOT=/nowhere
refused 1 60 'No engine is compiled' cmake -S runtime/cpp -B build/none -DTXPORT_WITH_ORT=OFF -DTXPORT_WITH_FUSED=OFF

# Without ONNX Runtime, as the first message advises.
step cmake -S runtime/cpp -B build/cpp -DTXPORT_WITH_ORT=OFF
expect 'Fused engine: compiled'
paste_line $page 'cmake --build build/cpp' -j "$(nproc)"
paste_line $page 'cmake --install build/cpp'
paste_line $page 'ldconfig'
step txport-translate --version
step bash -c "echo 'the cat sees a bird' | txport-translate $bundle"
expect "$answer"
refused 2 2 'ONNX Runtime' bash -c "echo a | txport-translate $bundle --engine ort"
refused 2 2 'nope' bash -c "echo a | txport-translate nope"

# The examples, by their first lines and by pkg-config.
mkdir -p build/examples
cp runtime/cpp/examples/translate.* build/examples
cd build/examples
step bash -c 'c++ -std=c++17 translate.cpp -ltxport'
step bash -c "echo 'the cat sees a bird' | ./a.out $bundle"
expect "$answer"
step bash -c 'cc translate.c -ltxport'
step ./a.out "$bundle" 'the cat sees a bird'
expect "$answer"
apt-get install -qq pkg-config > /dev/null
step bash -c 'c++ -std=c++17 translate.cpp $(pkg-config --cflags --libs txport)'
step python3 translate.py /usr/local/lib/libtxport.so "$bundle" 'the cat sees a bird'
expect "$answer"
cd ../..

# A project: with the installed txport, and with a clone, in one static program.
mkdir -p build/installed
cp runtime/cpp/examples/project/CMakeLists.txt build/installed
cp runtime/cpp/examples/translate.cpp build/installed/main.cpp
step cmake -S build/installed -B build/installed/build
step cmake --build build/installed/build
step bash -c "echo 'the cat sees a bird' | build/installed/build/app $bundle"
expect "$answer"
step xargs -a build/cpp/install_manifest.txt rm
step env REPOSITORY="$PWD" bash -euo pipefail -c "cd build; $(block runtime/cpp/examples/project/README.md 'git clone')"
step bash -c "echo 'the cat sees a bird' | build/app/build/app $bundle"
expect "$answer"
ls -l build/app/build/app

# With ONNX Runtime: `make` fetches its library and headers.
paste README.md 'apt install make'
step make cpp-ctest
expect '100% tests passed'
step cmake --install build/cpp/release --prefix /usr/local --strip
step ldconfig
step env TXPORT_ONNXRUNTIME="$PWD/build/cpp/onnxruntime/lib/libonnxruntime.so.1" txport-translate "$bundle" <<< "the cat sees a bird" --engine ort && expect "$answer"
echo '== The way of a C++ engineer: passed'
