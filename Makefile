# Everything these commands make is under build/; `make clean` removes it.
# They need python3 (3.10 or newer; another one: make test PYTHON=python3.12) with pip and venv, and the network for pip.

PYTHON ?= python3
VENV := build/venv
# The same packages, but txport is the wheel that ships and not this folder: what mypy and the tests look at.
WHEEL_VENV := build/venv-wheel
# Only what a device has: the wheel, ONNX Runtime, SentencePiece; no PyTorch. Python 3.10, the oldest, if there is one.
RUNTIME_VENV := build/venv-runtime
OLDEST ?= $(shell for p in python3.10 "$$HOME"/.pyenv/versions/3.10*/bin/python3.10; do \
  "$$p" -c 'import ensurepip' 2>/dev/null && { echo "$$p"; exit; }; done)
# The tests of the first run export a bundle here; the tests of the runtime without PyTorch use it.
TEST_BUNDLE := $(CURDIR)/build/test/bundle
WHEEL = $(wildcard build/dist/txport-*.whl)
PIP := -m pip --disable-pip-version-check

.PHONY: help venv demo test test-gpu lint types unit unit-runtime wheel clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo 'make demo      train a small Transformer, export it, verify it, translate with it (build/demo)'
	@echo 'make test      lint, types, import layers and all tests'
	@echo 'make lint      only style and import layers'
	@echo 'make venv      only the virtual environment, build/venv'
	@echo 'make test-gpu  the tests that need an NVIDIA GPU'
	@echo 'make clean     remove build/'

venv: $(VENV)/.ready

demo: $(VENV)/.ready
	@$(VENV)/bin/python -m txport.benchmarks.demo -o build/demo

test: lint types unit unit-runtime
	@echo '== make test: all passed'

lint: $(VENV)/.ready
	@echo '== Style (ruff) and import layers (import-linter)'
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports

types: wheel
	@echo '== Types (mypy --strict), against the installed wheel'
	@$(VENV)/bin/mypy --python-executable $(WHEEL_VENV)/bin/python --cache-dir build/mypy

unit: wheel
	@echo '== Tests, with the wheel installed'
	@rm -rf build/test
	@TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) $(WHEEL_VENV)/bin/python -m pytest -m 'not gpu'

unit-runtime: $(RUNTIME_VENV)/.ready wheel
	@$(RUNTIME_VENV)/bin/python $(PIP) install -q --no-deps --force-reinstall $(WHEEL)
	@test -e $(TEST_BUNDLE)/manifest.json || { echo 'Run `make unit` first: it exports the bundle to test with.'; exit 2; }
	@echo "== Tests of the runtime where there is no PyTorch, on $$($(RUNTIME_VENV)/bin/python --version)"
	@TXPORT_TEST_BUNDLE=$(TEST_BUNDLE) $(RUNTIME_VENV)/bin/python -m pytest -m 'not gpu' tests/runtime tests/test_layout.py

test-gpu: $(VENV)/.ready
	@$(VENV)/bin/python -m pytest -m gpu

# build/lib is setuptools' own leftover: what was deleted from the repository would still be packed from there.
wheel: $(VENV)/.ready $(WHEEL_VENV)/.ready
	@echo '== Build the wheel and install it'
	@rm -rf build/lib build/bdist.* build/dist
	@$(VENV)/bin/python $(PIP) wheel -q --no-deps --no-build-isolation -w build/dist .
	@rm -rf build/lib build/bdist.*
	@$(WHEEL_VENV)/bin/python $(PIP) install -q --no-deps --ignore-installed build/dist/txport-*.whl

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "txport needs Python 3.10 or newer, and $(PYTHON) is older or not there: try make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip' || { \
	  echo "$(PYTHON) has no venv; on Debian and Ubuntu: apt install python3-venv"; exit 2; }
	@echo '== Set up $(VENV) (once; PyTorch makes it 1 GB or, where pip chooses the CUDA build, several)'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python $(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

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
	@$(RUNTIME_VENV)/bin/python $(PIP) install -q "$$(echo build/dist/txport-*.whl)[ort,test]"
	@touch $@

clean:
	rm -rf build
