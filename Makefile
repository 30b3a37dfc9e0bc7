# Everything these commands make is under build/; `make clean` removes it.
# They need python3 (3.10 or newer; another one: make test PYTHON=python3.12) with pip and venv, and the network for pip.

PYTHON ?= python3
VENV := build/venv
# The same packages, but txport is the wheel that ships and not this folder: what mypy and the tests look at.
WHEEL_VENV := build/venv-wheel
# Only what a device has: the wheel, ONNX Runtime, SentencePiece, cuda-python; no PyTorch. Python 3.10, the oldest, if there is one.
RUNTIME_VENV := build/venv-runtime
OLDEST ?= $(shell for p in python3.10 "$$HOME"/.pyenv/versions/3.10*/bin/python3.10; do \
  "$$p" -c 'import ensurepip' 2>/dev/null && { echo "$$p"; exit; }; done)
# The tests of the first run export a bundle here; the tests of the runtime without PyTorch use it.
TEST_BUNDLE := $(CURDIR)/build/test/bundle
WHEEL = $(wildcard build/dist/txport-*.whl)
# Tests run side by side, one worker a core. Whole files, since fixtures are theirs, in the order of tests/conftest.py.
WORKERS ?= $(shell nproc)
SIDE_BY_SIDE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# What is never imported need not be compiled: most of what PyTorch brings along.
PIP := -m pip --disable-pip-version-check
INSTALL := $(PIP) install --no-compile
# The C++ runtime. ONNX Runtime's headers and library are put together here, unless ONNXRUNTIME_ROOT names a folder.
CPP := build/cpp
CPP_ONNXRUNTIME := $(or $(ONNXRUNTIME_ROOT),$(CURDIR)/$(CPP)/onnxruntime)
CPP_HIGHWAY := $(or $(HIGHWAY_ROOT),$(CURDIR)/$(CPP)/highway)
# Of the release build: .ci/run compiles its tests, which nobody installs, by folders (runtime/cpp/CMakeLists.txt).
UNITY ?= OFF
CPP_CMAKE = cmake -S runtime/cpp -G Ninja -DTXPORT_STRICT=ON -DONNXRUNTIME_ROOT=$(CPP_ONNXRUNTIME) -DHIGHWAY_ROOT=$(CPP_HIGHWAY) \
  $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# $(call sanitized,FOLDER,OPTIONS): configured for clang's sanitizers, with assertions and with line numbers in reports.
# That each source includes what it needs is seen by g++, which compiles each by itself.
sanitized = { CXX=clang++ CC=clang $(CPP_CMAKE) -B $(CPP)/$(1) -DCMAKE_BUILD_TYPE=Sanitized \
  -DCMAKE_CXX_FLAGS='-O1 -gline-tables-only' -DTXPORT_UNITY=ON -DTXPORT_TESTS=ON -DTXPORT_TOOLS=OFF \
  -DTXPORT_EXAMPLES=OFF $(2) > $(CPP)/$(1).log || { cat $(CPP)/$(1).log; exit 2; }; }
# Tests and fuzz targets share what is compiled.
sanitized_address = $(call sanitized,address,-DTXPORT_SANITIZE=address$(comma)undefined -DTXPORT_FUZZERS=ON)
sanitized_thread = $(call sanitized,thread,-DTXPORT_SANITIZE=thread)
# $(call sanitized_tests,FOLDER): in processes that take differently long, so that two folders' are run at the same time.
sanitized_tests = TSAN_OPTIONS=suppressions=$(CURDIR)/tests/cpp/tsan.txt:die_after_fork=0 ctest --test-dir $(CPP)/$(1) -j $(WORKERS) \
  --timeout 900 --output-on-failure > $(CPP)/$(1)-tests.log 2>&1
comma := ,
FUZZERS := fuzz_archive fuzz_manifest fuzz_golden fuzz_graphs fuzz_pieces fuzz_text fuzz_byte_level fuzz_build fuzz_fused fuzz_engine
FUZZ_SECONDS ?= 60

# The fused CPU engine, alone, as Python loads it; FUSED=0 does without it. FUSED_LIBRARY names
# one that was built elsewhere, for another processor.
FUSED ?= 1
FUSED_FOLDER := $(CPP)/engine
ifeq ($(FUSED),0)
export TXPORT_ENGINE_LIBRARY :=
else
FUSED_LIBRARY ?= $(shell ls $(CURDIR)/$(FUSED_FOLDER)/libtxport_engine.so 2> /dev/null)
endif

.PHONY: help venv constraints docs demo bench fused check test test-all test-cuda-provider test-onnxruntime test-sentencepiece
.PHONY: test-gpu gpu-bundles
.PHONY: gpu-kit gpu-demo gpu-rehearsal lint types fixtures unit unit-runtime whole-grid
.PHONY: wheel wheels release other-systems clean
.PHONY: arm64 arm64-cpp test-processors
.PHONY: bare-machine bare-machines
.PHONY: cpp cpp-build cpp-ctest cpp-dependencies cpp-clang cpp-sanitize cpp-sanitize-build cpp-fuzz cpp-tidy
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo 'make demo      train a small Transformer, export it, verify it, translate with it (build/demo)'
	@echo 'make bench     measure that bundle, and random ones, next to peers, greedy and with beams, and put the figures into the READMEs'
	@echo 'make check     under a minute: lint, types, and the tests of changed files'
	@echo 'make test      what a change must pass: lint, types and all tests, in minutes'
	@echo 'make test-all  before a release: also every importer through a bundle, sanitizers, fuzzers, ARM64, other processors, CUDA stand-ins'
	@echo 'make lint      only style and import layers'
	@echo 'make docs      the documentation site (build/site)'
	@echo 'make venv      only the virtual environment, build/venv'
	@echo "make test-cuda-provider   ONNX Runtime's own CUDA provider, without a GPU"
	@echo 'make test-onnxruntime   golden cases on each minor version of ONNX Runtime'
	@echo 'make test-sentencepiece   texts with versions of SentencePiece that segment ties differently'
	@echo 'make test-gpu  what only an NVIDIA GPU can show: tests, figures and a report'
	@echo 'make gpu-kit   the same for a machine with neither network nor compiler, in files to copy there'
	@echo 'make fused     build the fused CPU engine for Python, by a compiler from PyPI if none is here; make demo does it too'
	@echo 'make wheels    a wheel with that engine for this kind of processor, any Linux (build/wheels); MACHINES="x86_64 aarch64" for both'
	@echo 'make release   wheels of both kinds, and all else that is uploaded, checked'
	@echo 'make other-systems   the same for Windows and macOS, which have not run it; the tests of the engine for Windows run where Wine is'
	@echo 'make test-processors   tests of export, and the bundles of make demo, on older processors, as by switches or qemu; before a release'
	@echo 'make cpp       build, test and try the C++ runtime (Debian, Ubuntu)'
	@echo 'make cpp-sanitize, cpp-fuzz, cpp-tidy   more checks of it, with clang'
	@echo 'make arm64     both runtimes on 64-bit ARM, under qemu (Debian, Ubuntu); make arm64-cpp: only the one in C++'
	@echo 'make clean     remove build/'

venv: $(VENV)/.ready

# The engine is compiled while pip unpacks PyTorch, which takes one core: half a minute less.
demo:
	@$(MAKE) --no-print-directory fused & engine=$$!; $(MAKE) --no-print-directory $(VENV)/.demo; venv=$$?; wait $$engine && exit $$venv
	@$(VENV)/bin/python -m txport.benchmarks.demo -o build/demo

# $(call random_checkpoint,PRESET,VOCABULARY)
random_checkpoint = test -e build/$(1)/checkpoint/config.json || $(VENV)/bin/python -m \
  txport.benchmarks.studies.random_checkpoint --preset $(1) --vocabulary $(2) -o build/$(1)/checkpoint
base_checkpoint = $(call random_checkpoint,base,32000)

# int8 of random weights is not verified: they have no quality, and the gate would leave most of the encoder in float32.
bench: $(VENV)/.ready fused
	@test -e build/demo/bundle/manifest.json || { echo 'Run `make demo` first: it makes the bundle to measure.'; exit 2; }
	@test -e build/demo/bundle-int8/manifest.json || $(VENV)/bin/tx-export build/demo/checkpoint -o build/demo/bundle-int8 --int8
	@$(call random_checkpoint,small,4000)
	@$(base_checkpoint)
	@for model in small base; do for kind in bundle bundle-int8; do test -e build/$$model/$$kind/manifest.json \
	  || $(VENV)/bin/tx-export build/$$model/checkpoint -o build/$$model/$$kind --max-target 128 \
	  $$(test $$kind = bundle && echo --sentences 32 --singles 2 || echo --int8 --no-verify) || exit; done; done
	@$(VENV)/bin/tx-bench build/demo/bundle --against build/demo/bundle-int8 --peers -o build/bench/demo
	@$(VENV)/bin/tx-bench build/base/bundle --against build/base/bundle-int8 --peer ctranslate2 --lines 0 --quick -o build/bench/base
	@for model in demo small base; do $(VENV)/bin/tx-bench build/$$model/bundle --against build/$$model/bundle-int8 --beam 4 \
	  --batch 1,8 --lines 0 --peer huggingface --peer ctranslate2 --no-plots -o build/bench/$$model-beams || exit; done
	@$(VENV)/bin/python -m txport.benchmarks.report.readme_figures demo=build/bench/demo base=build/bench/base
	@$(VENV)/bin/python -m txport.benchmarks.report.readme_figures --readme benchmarks/README.md \
	  $(foreach model,demo small base,$(model)=build/bench/$(model)-beams)

# $(call stage,NAME,COMMAND): one line with its time. Its output is build/NAME.log, and is shown if it fails.
stage = mkdir -p build; started=$$(date +%s); { $(2) ; } > build/$(1).log 2>&1 \
  || { tail -n 400 build/$(1).log; echo "== $(1) failed, the whole log is build/$(1).log"; exit 2; }; \
  echo "== $(1): $$(($$(date +%s) - started)) s. $$(grep -ohE '[0-9]+ passed.* in |^Success:.*' build/$(1).log | sed 's/ in $$//' | tail -n 1)"

# Under a minute: lint, types, and the tests of changed files.
check: lint types
	@tests=$$($(VENV)/bin/python .ci/changed.py); test -z "$$tests" || { \
	  $(call stage,tests,PATH=$(CURDIR)/$(WHEEL_VENV)/bin:$$PATH python -m pytest $(SIDE_BY_SIDE) -m 'not gpu' $$tests); }

# What a change must pass.
test: lint types fixtures unit-runtime unit
ifndef TXPORT_CPP_BUILD
	@echo "The C++ runtime was not tested: make cpp does it, with the packages $$(grep -v '^#' runtime/cpp/packages.txt | xargs)"
endif
	@echo '== make test: all passed. Skipped tests, and what they need:'
	@grep -h '^SKIPPED' build/unit.log || echo 'nothing'

# Before a release: what takes longer than a change can wait for.
test-all: test whole-grid cpp-ctest cpp-sanitize cpp-fuzz test-cuda-provider test-onnxruntime test-sentencepiece demo test-processors arm64

# Tests that take one combination of each kind otherwise: every importer through a bundle, a TensorRT engine of every
# graph, more random texts for tokenizers, the whole recipe of spoken digits, a project of its own with all kernels, and
# the chain of kernels for every architecture of GPUs.
whole-grid: fused cpp-build
	@$(call stage,whole-grid,PATH=$(CURDIR)/$(VENV)/bin:$$PATH TXPORT_WHOLE_GRID=1 TXPORT_CPP_BUILD=$(CURDIR)/$(CPP)/release \
	  ONNXRUNTIME_ROOT=$(CPP_ONNXRUNTIME) python -m pytest $(SIDE_BY_SIDE) \
	  tests/models/importers tests/exporter/engines/test_building.py tests/exporter/test_fused.py \
	  tests/cpp/test_runtime_cpp.py tests/cpp/text/test_tokenizers_cpp.py tests/training/spoken/test_recordings.py \
	  tests/gpu/chain/test_compilers.py)

lint: $(VENV)/.ready
	@$(call stage,lint,$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/python .ci/pages.py \
	  && if test -x $(VENV)/bin/lint-imports; then $(VENV)/bin/lint-imports; \
	  else echo 'import-linter needs Python 3.11: layers are not checked'; fi)

# Every link, anchor and reference must exist (--strict). mkdocs serve, in the same environment, shows pages while they change.
docs: $(VENV)/.docs
	@echo '== The documentation site: build/site'
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build -q --strict

$(VENV)/.docs: $(VENV)/.ready
	@$(VENV)/bin/python $(INSTALL) -q -c constraints.txt -e '.[docs]'
	@touch $@

types: wheel
	@$(call stage,types,$(VENV)/bin/mypy --num-workers $(WORKERS) --python-executable $(WHEEL_VENV)/bin/python --cache-dir build/mypy)

# New bundles to test with.
fixtures: wheel
	@rm -rf build/test && mkdir -p build/test
	@$(call stage,fixtures,$(WHEEL_VENV)/bin/python tests/helpers/bundles.py $(TEST_BUNDLE))

with_fixtures = test -e $(TEST_BUNDLE)/manifest.json || $(MAKE) --no-print-directory fixtures

# The tests of the runtime run once, without PyTorch, on the oldest Python. Tests that are skipped there run in `unit`.
SKIPPED := build/test/skipped.txt
# What files, processes and cores are for, in which alone systems differ (runtime/system.py, tests/test_layout.py).
PORTABLE_TESTS = tests/runtime/test_files.py tests/runtime/test_system.py tests/runtime/bundle/test_archive.py tests/runtime/corpus/test_resume.py
unit-runtime: $(RUNTIME_VENV)/.ready wheel
	@$(with_fixtures)
	@$(RUNTIME_VENV)/bin/python $(INSTALL) -q --no-deps --force-reinstall $(WHEEL)
	@$(call stage,unit-runtime,TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) $(RUNTIME_VENV)/bin/python -m pytest $(SIDE_BY_SIDE) \
	  -m 'not gpu' --write-skipped=$(SKIPPED) tests/runtime tests/gpu)
	@$(call stage,unit-portable,TXPORT_SYSTEM=portable TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) $(RUNTIME_VENV)/bin/python -m pytest \
	  $(SIDE_BY_SIDE) -m 'not gpu' $(PORTABLE_TESTS))

unit: wheel
	@$(with_fixtures)
	@$(call stage,unit,PATH=$(CURDIR)/$(WHEEL_VENV)/bin:$$PATH TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) python -m pytest $(SIDE_BY_SIDE) \
	  -m 'not gpu' $$(test ! -e $(SKIPPED) || echo --only-skipped=$(SKIPPED)))

# ONNX Runtime's own CUDA provider, without a GPU, over stand-ins for CUDA's libraries: the newest version, and the last
# one for Python 3.10. Not the extra ort-gpu, which brings CUDA itself. Kernels compute nothing there.
CUDA_PROVIDER := build/cuda-provider
CUDA_PROVIDER_VENVS = $(CUDA_PROVIDER)/newest/.ready $(if $(OLDEST),$(CUDA_PROVIDER)/oldest/.ready)
$(CUDA_PROVIDER)/newest/.ready: INTERPRETER = $(PYTHON)
$(CUDA_PROVIDER)/oldest/.ready: INTERPRETER = $(OLDEST)
$(CUDA_PROVIDER)/%/.ready: pyproject.toml
	@echo '== Set up $(@D), with onnxruntime-gpu (once, 1 GB)'
	@rm -rf $(@D)
	@$(INTERPRETER) -m venv $(@D)
	@$(@D)/bin/python $(INSTALL) -q onnxruntime-gpu "cuda-bindings<13; python_version < '3.11'" \
	  "cuda-bindings; python_version >= '3.11'" onnx 'sentencepiece>=0.2.1,<0.3' 'click>=8.1' 'pytest>=8'
	@touch $@

# $(call cuda_provider_tests,VENV)
cuda_provider_tests = $(1)/bin/python $(INSTALL) -q --no-deps --force-reinstall $(WHEEL) && \
  $(1)/bin/python tests/fakes/cuda_stubs.py $(1)/stubs && \
  TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) TXPORT_CUDA_STUBS=$(CURDIR)/$(1)/stubs LD_LIBRARY_PATH=$(CURDIR)/$(1)/stubs/cudnn \
  $(if $(wildcard $(CPP)/release/txport-translate),TXPORT_CPP_BUILD=$(CURDIR)/$(CPP)/release) \
  $(1)/bin/python -m pytest -p no:cacheprovider tests/cuda_provider

# Export what is missing of the tests' bundles.
test_bundles = $(VENV)/bin/python tests/helpers/bundles.py $(TEST_BUNDLE)

test-cuda-provider: $(CUDA_PROVIDER_VENVS) wheel
	@$(test_bundles)
	@test -n '$(OLDEST)' || echo 'There is no Python 3.10 here: the last onnxruntime-gpu for it is not tested.'
	@$(foreach venv,$(patsubst %/.ready,%,$(CUDA_PROVIDER_VENVS)),echo "== ONNX Runtime's CUDA provider without a GPU: \
	  $$($(venv)/bin/python -c 'import onnxruntime as o; print(o.__version__)')" && $(call cuda_provider_tests,$(venv)) &&) true

# What a new user does, by the commands of the pages, on a bare Debian (debootstrap, as root): one way, or all ways on both.
WAY ?= python_developer
SUITE ?= bookworm
WAYS := $(notdir $(basename $(shell grep -l pages.sh tests/bare_machines/*.sh)))
bare-machine:
	@tests/bare_machines/machine.sh $(SUITE) tests/bare_machines/$(WAY).sh

bare-machines:
	@$(foreach suite,bookworm trixie,$(foreach way,$(WAYS),$(call stage,$(way)-$(suite),$(MAKE) bare-machine WAY=$(way) SUITE=$(suite)) &&)) true

# Each minor version of ONNX Runtime, 20 MB each, on the bundle of the tests.
test-onnxruntime: $(VENV)/.ready
	@$(test_bundles)
	@$(VENV)/bin/python -m txport.benchmarks.studies.onnxruntime_versions $(TEST_BUNDLE)

# Texts with a version of SentencePiece of each arithmetic, where the other one is the oracle (runtime/text/unigram.py).
# Two files are left out: they need models that the version of constraints.txt has trained.
test-sentencepiece: $(VENV)/.ready
	@for version in 0.2.1 0.2.3; do test -d build/sentencepiece/$$version || $(VENV)/bin/python $(INSTALL) -q --no-deps \
	  --target build/sentencepiece/$$version sentencepiece==$$version || exit; done
	@for pair in 0.2.1:0.2.3 0.2.3:0.2.1; do echo "== SentencePiece $${pair%:*}"; \
	  PYTHONPATH=build/sentencepiece/$${pair%:*} TXPORT_OTHER_SENTENCEPIECE=build/sentencepiece/$${pair#*:} \
	  $(VENV)/bin/python -m pytest -q tests/runtime/text tests/training/test_tokenizers.py tests/models/importers/tokenizers \
	  --ignore tests/runtime/text/test_replace_unknowns.py --ignore tests/runtime/text/test_tokenizer_cases.py || exit; done

# The bundles for a GPU: the tests', the demo's if `make demo` has run, and the base preset with random weights, in float16,
# whose figures count. Random weights meet too many near ties in float16 to be verified. BUNDLES names other ones.
# PROGRAMS=0 leaves out the C++ tools. What other targets make is looked up by the shell: make may remember that it was
# not there.
GPU_BUNDLES = $(or $(BUNDLES),build/gpu/bundles)
GPU_PROGRAMS = $(if $(filter 0,$(PROGRAMS)),,$(shell test ! -x $(CPP)/release/txport-bench || echo $(CPP)/release))
gpu-bundles: $(VENV)/.ready
ifndef BUNDLES
	@$(test_bundles)
	@test -e build/grown/checkpoint/config.json || $(VENV)/bin/python tests/gpu/grown_weights.py checkpoint build/grown/checkpoint
	@for kind in float16 float32; do test -e build/grown/$$kind/manifest.json || $(VENV)/bin/tx-export build/grown/checkpoint \
	  -o build/grown/$$kind $$(test $$kind = float32 || echo --fp16) --no-verify --sentences 8 || exit; done
	@test -e build/gpu/patterns/cases.json || PYTHONPATH=tests/helpers:tests/gpu/patterns $(VENV)/bin/python \
	  tests/gpu/patterns/pattern_graphs.py build/gpu/patterns
	@rm -rf $(GPU_BUNDLES) && mkdir -p $(GPU_BUNDLES)
	@for pair in grown/float16=base-float16 grown/float32=base-float32 demo/bundle-fp16=demo-float16 test/bundle=tiny-float32 \
	  test/bundle-float16=tiny-float16 test/bundle-islands=tiny-islands; do \
	  test ! -e build/$${pair%=*} || ln -s $(CURDIR)/build/$${pair%=*} $(GPU_BUNDLES)/$${pair#*=}; done
endif

test-gpu: gpu-bundles
	@$(VENV)/bin/python tests/gpu/run.py build/gpu --bundles $(GPU_BUNDLES) $(addprefix --programs ,$(GPU_PROGRAMS))

# For which GPUs the chain of kernels is compiled in advance, if nvcc is installed; NVRTC compiles it for others.
CHAIN_ARCHITECTURES = $(or $(ARCHITECTURES),$(if $(shell command -v nvcc),90))
# The kit is for another machine, so what it needs is made first: the demo (minutes), and the C++ tools without tests.
gpu-kit: CPP_TARGETS := txport-translate txport-bench
gpu-kit: gpu-demo gpu-bundles $(if $(filter 0,$(PROGRAMS)),,cpp-build) wheel
	@PYTHON=$(VENV)/bin/python PYTHONS="$(or $(PYTHONS),3.12 3.10)" PATTERNS=$$(ls -d build/gpu/patterns 2> /dev/null) ADDED="$(ADDED)" \
	  ARCHITECTURES="$(CHAIN_ARCHITECTURES)" \
	  tests/gpu/kit.sh build/gpu-kit $(WHEEL) $(GPU_BUNDLES) $(GPU_PROGRAMS)

gpu-demo:
ifndef BUNDLES
	@test -e build/demo/bundle-fp16/manifest.json || $(MAKE) --no-print-directory demo
endif

# The calls of tests/gpu/README.md on this machine, from the kit in build/gpu-kit, over a driver in host memory.
gpu-rehearsal: $(VENV)/.ready
	@PYTHONPATH=tests/fakes $(VENV)/bin/python tests/gpu/rehearse.py build/gpu-kit build/gpu-rehearsal

# build/lib is setuptools' own leftover: what was deleted from the repository would still be packed from there. And what
# was deleted would stay installed, since pip looks for the old version in the first environment.
# $(call pack,LIBRARY,FOLDER): the wheel, with the fused engine's library if there is one.
pack = rm -rf build/lib build/bdist.* $(2) && TXPORT_WHEEL_ENGINE=$(1) \
  $(PACK_PYTHON) $(PIP) wheel -q --no-deps --no-build-isolation -w $(2) . && rm -rf build/lib build/bdist.*

PACK_PYTHON := $(VENV)/bin/python

wheel: $(VENV)/.ready $(WHEEL_VENV)/.ready fused
	@echo '== Build the wheel and install it'
	@$(call pack,$(FUSED_LIBRARY),build/dist)
	@rm -rf $(WHEEL_VENV)/lib/python*/site-packages/txport*
	@$(WHEEL_VENV)/bin/python $(INSTALL) -q --no-deps --ignore-installed build/dist/txport-*.whl

# Wheels with the engine inside, for this kind of processor, or others, and any Linux with glibc 2.17: by ziglang.
MACHINES ?= $(shell uname -m)
WHEELS := build/wheels
RELEASE_VENV := build/venv-release
MOST_WHEEL_BYTES := 2000000
# $(call machine_wheel,MACHINE)
machine_wheel = TARGET=$(1)-linux-gnu.2.17 PYTHON=$(PYTHON) runtime/cpp/engine.sh $(CPP)/engine-$(1) && \
  { $(call pack,$(CURDIR)/$(CPP)/engine-$(1)/libtxport_engine.so,$(WHEELS)/$(1)); } && mv $(WHEELS)/$(1)/*.whl $(WHEELS) && rmdir $(WHEELS)/$(1)

wheels: PACK_PYTHON := $(RELEASE_VENV)/bin/python
wheels: $(RELEASE_VENV)/.ready
	@rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	@$(foreach machine,$(MACHINES),echo '== The wheel for $(machine), some minutes' && $(call machine_wheel,$(machine)) &&) true
	@for wheel in $(WHEELS)/*.whl; do $(RELEASE_VENV)/bin/auditwheel show $$wheel | tr '\n' ' ' | grep -oE 'txport\S+ is consistent with the following platform tag: "manylinux_2_[0-9]+_\w+"' \
	  && test $$(stat -c %s $$wheel) -le $(MOST_WHEEL_BYTES) || { echo "$$wheel is no manylinux wheel of at most $(MOST_WHEEL_BYTES) bytes"; exit 2; }; done

# The engine and its tests for Windows and macOS, and wheels, which no such system has run: they are not part of a release.
OTHER_SYSTEMS := x86_64-windows-gnu aarch64-macos.11.0 x86_64-macos.11.0
WINE := $(firstword $(wildcard /usr/bin/wine64 /usr/lib/wine/wine64 /usr/bin/wine))
# $(call engine_for,TARGET)
engine_for = { TARGET=$(1) PYTHON=$(PYTHON) runtime/cpp/engine.sh $(CPP)/engine-$(1) -DTXPORT_TESTS=ON; } && \
  { $(call pack,$$(echo $(CURDIR)/$(CPP)/engine-$(1)/*txport_engine.d*[bl]),$(CPP)/wheel-$(1)); }

other-systems: PACK_PYTHON := $(RELEASE_VENV)/bin/python
other-systems: $(RELEASE_VENV)/.ready
	@$(foreach target,$(OTHER_SYSTEMS),echo '== The fused engine for $(target)' && $(call engine_for,$(target)) &&) true
	@ls $(CPP)/wheel-*/*.whl
ifeq ($(WINE),)
	@echo 'The tests for Windows were not run: there is no Wine (apt install wine64). Those for macOS never are.'
else
	@echo '== The tests of the fused engine for Windows, under Wine'
	@WINEPREFIX=$(CURDIR)/$(CPP)/wine WINEDEBUG=-all $(WINE) $(CPP)/engine-x86_64-windows-gnu/tests/txport_engine_tests.exe
endif

# What is to be uploaded, checked: one version and a date for it in CHANGELOG.md, wheels, source that builds without git, README.
RELEASE := build/release
VERSION = $(shell cat runtime/cpp/VERSION)
release: MACHINES := x86_64 aarch64
release: wheels
	@grep -qE '^## \[$(VERSION)\] - 20[0-9]{2}-[0-9]{2}-[0-9]{2}$$' CHANGELOG.md || { echo 'CHANGELOG.md has no dated section of $(VERSION)'; exit 2; }
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE)/source
	@$(RELEASE_VENV)/bin/python -m build -q --no-isolation --sdist -o $(RELEASE) .
	@tar -xzf $(RELEASE)/txport-$(VERSION).tar.gz -C $(RELEASE)/source --strip-components 1
	@cd $(RELEASE)/source && $(CURDIR)/$(RELEASE_VENV)/bin/python $(PIP) wheel -q --no-deps --no-build-isolation -w built . \
	  && PYTHON=$(PYTHON) HIGHWAY_ROOT=$(CPP_HIGHWAY) runtime/cpp/engine.sh built/engine
	@test -e $(RELEASE)/source/built/txport-$(VERSION)-*.whl && rm -rf $(RELEASE)/source
	@cp $(WHEELS)/txport-$(VERSION)-*.whl $(RELEASE)
	@$(RELEASE_VENV)/bin/twine check --strict $(RELEASE)/*
	@cd $(RELEASE) && sha256sum txport-* | tee SHA256SUMS

$(RELEASE_VENV)/.ready: .ci/release.txt
	@$(PYTHON) -m venv $(RELEASE_VENV)
	@$(RELEASE_VENV)/bin/python $(INSTALL) -q --require-hashes -r .ci/release.txt
	@touch $@

# What `make demo` takes; the rest of what development takes is as much again.
$(VENV)/.demo: pyproject.toml constraints.txt .ci/demo.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "txport needs Python 3.10 or newer, and $(PYTHON) is older or not there: try make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip' || { \
	  echo "$(PYTHON) has no venv; on Debian and Ubuntu: apt install python3-venv"; exit 2; }
	@echo '== Set up $(VENV) (once; PyTorch makes it 1 GB or, where pip chooses the CUDA build, several)'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(call stage,pip-hashes,$(VENV)/bin/python $(INSTALL) --require-hashes --no-deps -r .ci/demo.txt)
	@$(call stage,pip-demo,$(VENV)/bin/python $(INSTALL) -c constraints.txt -e '.[train$(comma)export$(comma)bench]')
	@touch $@

$(VENV)/.ready: $(VENV)/.demo .ci/dev.txt
	@echo '== Add what development and tests take to $(VENV) (once, 1 GB)'
	@$(call stage,pip-hashes,$(VENV)/bin/python $(INSTALL) --require-hashes --no-deps -r .ci/dev.txt)
	@$(call stage,pip-dev,$(VENV)/bin/python $(INSTALL) -c constraints.txt -e '.[dev]')
	@touch $@

COMPILE := build/uv/bin/uv pip compile -q pyproject.toml --universal --python-version 3.10 --no-annotate --no-header
# PyTorch and CUDA have other builds, with other hashes, in PyTorch's indexes.
hashes = { cat .ci/hashes.head && $(COMPILE) $(1) --generate-hashes -c constraints.txt $$(sed -nE \
  's/^(torch|triton|cuda-[a-z]+|nvidia-(cu|n)[a-z0-9-]*)==.*/--no-emit-package \1/p' constraints.txt); }
# Versions that stand there already stay, if they fit: those of a green run. To have newer ones, delete their lines.
constraints:
	@test -x build/uv/bin/uv || { $(PYTHON) -m venv build/uv && build/uv/bin/python $(INSTALL) -q --require-hashes -r .ci/uv.txt; }
	@$(COMPILE) --extra dev --extra docs -o constraints.txt > /dev/null
	@cat .ci/constraints.head constraints.txt > build/constraints.txt && mv build/constraints.txt constraints.txt
	@$(call hashes,--extra train --extra export --extra bench) > build/demo.txt && mv build/demo.txt .ci/demo.txt
	@$(call hashes,--extra dev --extra docs) > build/dev.txt && mv build/dev.txt .ci/dev.txt

# A second environment that finds its libraries in the first one, by a .pth file, so that nothing is installed twice.
$(WHEEL_VENV)/.ready: $(VENV)/.ready
	@rm -rf $(WHEEL_VENV)
	@$(VENV)/bin/python -m venv --without-pip $(WHEEL_VENV)
	@where='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $(VENV)/bin/python -c "$$where" > "$$($(WHEEL_VENV)/bin/python -c "$$where")/base.pth"
	@touch $@

$(RUNTIME_VENV)/.ready: $(VENV)/.ready | wheel
	@echo '== Set up $(RUNTIME_VENV), without PyTorch'
	@test -n '$(OLDEST)' || echo 'There is no Python 3.10 here: the tests of the runtime run on $(PYTHON) instead.'
	@rm -rf $(RUNTIME_VENV)
	@$(or $(OLDEST),$(PYTHON)) -m venv $(RUNTIME_VENV)
	@$(call stage,pip-runtime,$(RUNTIME_VENV)/bin/python $(INSTALL) -c constraints.txt \
	  "$$(echo build/dist/txport-*.whl)[ort$(comma)trt$(comma)serve$(comma)corpus$(comma)test]")
	@touch $@

# Seconds if nothing was changed, a minute the first time.
# Each kind of PyTorch's kernels; the fused engine's targets are tested in tests/cpp. ONNX Runtime has no such switch: the
# demo's bundles are verified on processors that qemu imitates, with its SSE, its AVX and its AVX2.
test-processors: $(VENV)/.ready
	@test -e build/demo/bundle-fp16/manifest.json || { echo 'Run `make demo` first: it makes the bundles to verify.'; exit 2; }
	@command -v qemu-x86_64 > /dev/null || { echo 'qemu-x86_64 is missing: apt install qemu-user'; exit 2; }
	@for isa in default:SSE41 avx2:AVX2; do echo "== $$isa" && ATEN_CPU_CAPABILITY=$${isa%:*} ONEDNN_MAX_CPU_ISA=$${isa#*:} \
	  $(VENV)/bin/python -m pytest -q tests/exporter || exit 1; done
	@for cpu in Nehalem SandyBridge Haswell-noTSX; do for bundle in bundle bundle-fp16; do echo "== $$bundle on $$cpu" && \
	  qemu-x86_64 -cpu $$cpu,check=off $(VENV)/bin/python $(VENV)/bin/tx-verify build/demo/$$bundle build/demo/checkpoint \
	  --sentences 20 --singles 2 --no-write || exit 1; done; done

fused:
ifneq ($(FUSED),0)
	@PYTHON=$(PYTHON) runtime/cpp/engine.sh $(FUSED_FOLDER)
endif

clean:
	rm -rf build

cpp-build: cpp-dependencies
	@echo '== Build the C++ runtime (g++)'
	@$(CPP_CMAKE) -B $(CPP)/release -DTXPORT_TESTS=ON -DTXPORT_UNITY=$(UNITY) > $(CPP)/release.log || { cat $(CPP)/release.log; exit 2; }
	@grep -oE '(TensorRT|Fused engine): .*' $(CPP)/release.log
	@cmake --build $(CPP)/release $(if $(CPP_TARGETS),--target $(CPP_TARGETS))

cpp-ctest: cpp-build
	@echo '== Tests of the C++ runtime'
	@ctest --test-dir $(CPP)/release -j $(WORKERS) --timeout 1800 --output-on-failure
	@echo '== The example of runtime/cpp/README.md, with the toy bundle of the tests'
	@echo 'the cat sees a bird' | $(CPP)/release/txport_example_cpp tests/data/toy_bundle

cpp: cpp-ctest
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH TXPORT_CPP_BUILD=$(CURDIR)/$(CPP)/release ONNXRUNTIME_ROOT=$(CPP_ONNXRUNTIME) \
	  $(if $(wildcard $(TEST_BUNDLE)/manifest.json),TXPORT_TEST_BUNDLE=$(TEST_BUNDLE)) python -m pytest tests/cpp

cpp-dependencies: $(VENV)/.demo
ifndef ONNXRUNTIME_ROOT
	@runtime/cpp/dependencies.sh $(CPP)/onnxruntime $(VENV)/bin/python
endif
	@mkdir -p $(CPP)

# 64-bit ARM, as in every Jetson, under qemu. Programs are run by scripts of the same names, also those that tests start;
# nm and strip that read them are the cross-compiler's.
ARM64 := build/arm64
ARM64_CMAKE = --toolchain cmake/aarch64.cmake -DTXPORT_SYSROOT=$(CURDIR)/$(ARM64)/sysroot
ARM64_PYTEST = TXPORT_CPP_BUILD=$(CURDIR)/$(ARM64)/emulated TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) TXPORT_EMULATED=1 \
  CXX=aarch64-linux-gnu-g++ PATH=$(CURDIR)/$(ARM64)/venv/bin:/usr/aarch64-linux-gnu/bin:$$PATH python -m pytest -p no:cacheprovider
# $(call arm64_configured,FOLDER,OPTIONS)
arm64_configured = { cmake -S runtime/cpp -B $(ARM64)/$(1) -G Ninja -DTXPORT_TESTS=ON $(ARM64_CMAKE) \
  -DHIGHWAY_ROOT=$(CURDIR)/$(ARM64)/sysroot/usr/highway $(2) > $(ARM64)/$(1).log || { cat $(ARM64)/$(1).log; exit 2; }; }
# $(call arm64_ids,TESTS): compares with this machine, and exports the bundles if they are not there.
arm64_ids = TXPORT_ARM64=$(CURDIR)/$(ARM64)/emulated TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) \
  $(VENV)/bin/python -m pytest -q tests/cpp/test_processors.py -k '$(1)'

# $(call arm64_python,LIBRARY): the wheel and all that runs it, and the C++ programs.
arm64_python = $(call pack,$(1),$(ARM64)/dist) && \
  runtime/cpp/arm64.sh $(ARM64) $(VENV)/bin/python $(ARM64)/dist/txport-*.whl constraints.txt

# Not strict: with sanitizers g++ warns of what it cannot know. A search for leaks would trace the process, as qemu cannot.
# ThreadSanitizer would start the program again, without qemu, if addresses were random.
arm64_sanitized = $(call arm64_configured,$(1),-DTXPORT_UNITY=ON -DTXPORT_SANITIZE=$(2) -DCMAKE_BUILD_TYPE=Sanitized -DCMAKE_CXX_FLAGS='-O1 -g1' \
  -DCMAKE_EXE_LINKER_FLAGS='$(3)' -DTXPORT_TOOLS=OFF -DTXPORT_EXAMPLES=OFF) && cmake --build $(ARM64)/$(1) --target txport_tests && \
  printf '%s\n' cortex-a76 max | ASAN_OPTIONS=detect_leaks=0 xargs -P $(WORKERS) -I CPU env QEMU_CPU=CPU \
  setarch -R qemu-aarch64 -L $(ARM64)/sysroot $(ARM64)/$(1)/tests/txport_tests --source-file='*/fused/*'

# What continuous integration has the time for: the library and the tools, golden cases, and ids on one processor.
arm64-cpp: fused
	@$(call arm64_python,)
	@echo '== Build the C++ runtime for arm64'
	@$(call arm64_configured,release,-DTXPORT_STRICT=ON -DTXPORT_UNITY=ON)
	@cmake --build $(ARM64)/release --target txport txport-translate txport-bench txport_example_c txport_example_cpp
	@echo '== Its golden cases and ids on arm64, under qemu'
	@$(call arm64_ids,cortex-a76)
	@$(ARM64_PYTEST) -q tests/cpp/test_runtime_cpp.py -k checks_itself

# soak: the memory of qemu, which keeps what it has compiled, would be measured; 100,000 translations take it an hour.
arm64: arm64-cpp
	@echo '== The tests of the C++ runtime on arm64, under qemu'
	@cmake --build $(ARM64)/release
	@QEMU_CPU=cortex-a76 ctest --test-dir $(ARM64)/release -j $(WORKERS) --output-on-failure -E soak
	@$(call arm64_ids,not cortex-a76)
	@echo '== The tests of the fused engine on arm64 under sanitizers: address and undefined, then thread'
	@$(call arm64_sanitized,address,address$(comma)undefined,-static-libasan -static-libubsan)
	@$(call arm64_sanitized,thread,thread,-static-libtsan)
	@echo '== The wheel for arm64 with the fused engine'
	@HIGHWAY_ROOT=$(ARM64)/sysroot/usr/highway runtime/cpp/engine.sh $(ARM64)/engine $(ARM64_CMAKE)
	@test -e $(ARM64)/engine/libtxport_engine.so
	@$(call arm64_python,$(ARM64)/engine/libtxport_engine.so)
	@echo '== The tests of its programs and of the Python runtime on arm64, under qemu'
	@$(ARM64_PYTEST) $(SIDE_BY_SIDE) -m 'not gpu' tests/cpp tests/runtime

cpp-clang: $(VENV)/.ready
	@runtime/cpp/dependencies.sh $(CPP)/onnxruntime $(VENV)/bin/python clang clang-format clang-tidy libclang-rt-dev
	@find runtime/cpp tests/cpp tests/gpu/chain -name '*.[ch]pp' -o -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format --dry-run --Werror

# ONNX Runtime is not instrumented: what ThreadSanitizer sees inside of it says nothing.
cpp-sanitize-build: cpp-clang
	@echo '== Build the C++ tests with sanitizers, and the fuzzers (clang)'
	@$(sanitized_address) && $(sanitized_thread)
	@cmake --build $(CPP)/address --target txport_tests $(FUZZERS)
	@cmake --build $(CPP)/thread --target txport_tests

cpp-sanitize: cpp-sanitize-build
	@echo '== The C++ tests under sanitizers: address and undefined, and thread'
	@$(call sanitized_tests,address) & first=$$!; $(call sanitized_tests,thread) & second=$$!; \
	wait $$first; one=$$?; wait $$second; two=$$?; \
	cat $(CPP)/address-tests.log $(CPP)/thread-tests.log; test $$one = 0 && test $$two = 0

# $(call fuzz,TARGET,CORPUS): what is found new stays under build/, the seeds are only read.
fuzz = { mkdir -p $(CPP)/corpus/$(1); $(CPP)/address/tests/fuzz_$(1) -max_total_time=$(FUZZ_SECONDS) -timeout=20 \
  -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix=$(CPP)/corpus/$(1)- $(CPP)/corpus/$(1) $(2) > $(CPP)/fuzz-$(1).log 2>&1 \
  || { cat $(CPP)/fuzz-$(1).log; exit 2; }; }
cpp-fuzz: cpp-clang
	@echo '== Fuzz the C++ runtime, $(FUZZ_SECONDS) seconds a target'
	@$(sanitized_address)
	@cmake --build $(CPP)/address --target $(FUZZERS)
	@rm -rf $(CPP)/seeds
	@$(VENV)/bin/python tests/data/patches.py $(CPP)/seeds
	@$(call fuzz,manifest,$(CPP)/seeds/manifest) & first=$$!; \
	$(call fuzz,golden,tests/cpp/fuzz/corpus/golden) & second=$$!; \
	$(call fuzz,text,tests/cpp/fuzz/corpus/text) & third=$$!; \
	$(call fuzz,byte_level,) & seventh=$$!; \
	$(call fuzz,build,$(CPP)/seeds/build) & fourth=$$!; \
	$(call fuzz,fused,) & fifth=$$!; \
	$(call fuzz,engine,) & sixth=$$!; \
	$(call fuzz,archive,) & eighth=$$!; \
	$(call fuzz,graphs,tests/data/toy_bundle/onnx tests/data/before_t5/bundle/onnx) & ninth=$$!; \
	$(call fuzz,pieces,tests/data/tokenizer) & tenth=$$!; \
	wait $$first && wait $$second && wait $$third && wait $$fourth && wait $$fifth && wait $$sixth && wait $$seventh \
	  && wait $$eighth && wait $$ninth && wait $$tenth
	@grep -h number_of_executed_units $(CPP)/fuzz-*.log

cpp-tidy: cpp-clang
	@CXX=clang++ CC=clang $(CPP_CMAKE) -B $(CPP)/tidy -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > $(CPP)/tidy.log || { cat $(CPP)/tidy.log; exit 2; }
	@sed -n 's/^ *"file": "\(.*runtime\/cpp\/\(src\|tools\)\/.*\)",\{0,1\}$$/\1/p' $(CPP)/tidy/compile_commands.json \
	  | sort -u | xargs -P 2 -n 4 clang-tidy --quiet -p $(CPP)/tidy
