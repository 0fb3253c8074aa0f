# Everything a user or CI does, from a fresh clone. It needs Python 3.11 with pip, and a C++ compiler for the native kernels
# (without one everything runs on the reference kernels, and says so).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
FRAMEWORK := torch==2.14.1 torchvision==0.29.1
BUILD := "setuptools>=77" wheel ninja packaging

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-warn-script-location
NATIVE := $(shell find fxquant/kernels/csrc -type f 2>/dev/null)
# One stamp per set of devices, so that FXQUANT_CUDA=1 builds again after a build without it.
READY := $(VENV)/.fxquant-$(if $(filter 1,$(FXQUANT_CUDA)),cuda,cpu)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint docs wheel matrix smoke fuzz hostile calls slow large sanitize bench real zoo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## quantize MobileNetV2 with its real weights on real photographs; text here, picture in out/
	@$(BIN)/python -m fxquant demo --output out

# Compiled modules are kept whatever the environment says: tests start a hundred processes that import the package, and
# pytest rewrites the assertions of every test in each process, which takes longer than all else that collecting them does.
test: lint ## lint, then the tests (of the costliest, some cases)
	@echo "== pytest, one process per core"
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -n auto --dist worksteal

test-all: ## every test whole: make test, then slow, fuzz for an hour, hostile, sanitize, large and zoo (many hours, 16 GB of memory)
	@$(MAKE) test
	@$(MAKE) slow
	@$(MAKE) fuzz SECONDS=3600
	@$(MAKE) hostile
	@$(MAKE) sanitize
	@$(MAKE) large
	@$(MAKE) zoo

lint: $(READY) ## ruff (rules and format) and mypy
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy

docs: $(READY) ## the documentation as a site, in out/docs; warnings are errors
	@$(PIP) --no-build-isolation --editable '.[docs]'
	@OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/docs docs out/docs
	@echo "out/docs/index.html"

wheel: $(READY) ## wheels for glibc 2.28 into dist/: x86-64, where the README runs, and aarch64 by a cross compiler, whose loops qemu runs
	@$(PIP) --no-build-isolation --editable '.[release]'
	@$(BIN)/python scripts/wheels.py --try

PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
TORCHES ?= 2.10 2.13 2.14
matrix: $(READY) ## two minutes of tests with each of PYTHONS and of TORCHES that can be had, on one wheel; JSON in out/
	@$(PIP) --no-build-isolation --editable '.[release]'
	@$(BIN)/python scripts/wheels.py --only $(shell uname -m)
	@$(BIN)/python scripts/matrix.py --wheel dist/fxquant-*-manylinux_2_28_$(shell uname -m).whl --pythons $(PYTHONS) \
	  --torches $(TORCHES) $(if $(GIGABYTES),--gigabytes)

OLDEST ?= 2.13.0+cpu
smoke: $(READY) ## two minutes of tests on the torch OLDEST (the oldest that pip brings without CUDA), in an environment in build/smoke
	@$(BIN)/python scripts/smoke.py --torch $(OLDEST)

SECONDS ?= 60
SEED ?= 1
fuzz: $(READY) ## random models for SECONDS (60) from SEED (1) on, each checked in all its forms; exits 1 if any is wrong
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

FILES ?= 10000
hostile: $(READY) ## FILES (10000) damaged .fxq files of two kinds, from SEED (1) on: each opens, or is refused by an ArtifactError
	@OMP_NUM_THREADS=1 $(BIN)/python tests/artifact/mutations.py new $(FILES) $(SEED)
	@OMP_NUM_THREADS=1 $(BIN)/python tests/artifact/mutations.py prepared $(FILES) $(SEED)

CALLS ?= 100000
calls: $(READY) ## CALLS (100000) random calls of each native operator, with each instruction set, beside its reference; JSON in out/ (goes on there)
	@PYTHONPATH=tests/kernels OMP_NUM_THREADS=1 $(BIN)/python tests/kernels/random_calls.py --calls $(CALLS)

slow: $(READY) ## the networks and benchmarks of which make test runs one of each kind (minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -n auto --dist worksteal -m slow

large: $(READY) ## tests of tensors with more than 2^31 elements (16 GB of memory, minutes)
	@$(BIN)/python -m pytest -m large tests/kernels/test_large.py

# A copy of the package whose libraries check themselves, before the installed one on the path, and before this folder (which
# Python would put first in the processes that tests start). The runtimes come before all else that is loaded. pytest must not
# hold stderr back: an error ends the process at once, and says there what it was.
SANITIZED := $(CURDIR)/build/sanitize
RUNTIMES = $(foreach name,libasan.so libstdc++.so.6,$(shell $${CXX:-c++} -print-file-name=$(name)))
CHECKED = FXQUANT_SANITIZE=1 PYTHONSAFEPATH=1 LD_PRELOAD="$(RUNTIMES)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
sanitize: $(READY) ## the tests of kernels and programs under AddressSanitizer and UBSan, every instruction set; then CALLS random calls (hours)
	@echo "== native kernels for AddressSanitizer and UBSan, in $(SANITIZED)"
	@rm -rf "$(SANITIZED)" # sources that are gone would stay there, and the library be taken for one of other sources
	@FXQUANT_SANITIZE=1 FXQUANT_CUDA=0 $(BIN)/python setup.py -q build --build-lib "$(SANITIZED)"
	@echo "== pytest"
	@$(CHECKED) PYTHONPATH="$(SANITIZED)" OMP_NUM_THREADS=2 \
	  $(BIN)/pytest --capture=sys -m 'not large' --ignore tests/kernels/test_build.py tests/kernels tests/runtime
	@echo "== the loops as a plain program, CALLS calls of each kind"
	@$(BIN)/python scripts/plain_loops.py --sanitize --cases $(CALLS)
	@echo "== random calls"
	@$(CHECKED) PYTHONPATH="$(SANITIZED):$(CURDIR)/tests/kernels" OMP_NUM_THREADS=1 \
	  $(BIN)/python tests/kernels/random_calls.py --calls $(CALLS)

bench: $(READY) ## int8 against float, torch.ao and what other runtimes are installed (an hour and more), then the cost of calibration; JSON in out/
	@mkdir -p out
	@$(BIN)/python benchmarks/int8.py --json out/int8.json
	@$(BIN)/python benchmarks/calibration.py --json out/calibration.json

real: $(READY) ## networks with real weights on real data: accuracy of int8, its simulation and torch.ao (minutes); JSON in out/
	@mkdir -p out
	@$(BIN)/python benchmarks/real_weights.py --json out/real.json

zoo: $(READY) ## all networks of torchvision, and one of each kind of timm: noise, share of int8, speed (hours; goes on where it stopped); JSON in out/
	@$(PIP) --editable '.[zoo]' --no-build-isolation
	@$(BIN)/python benchmarks/zoo_others.py --json out/zoo_others.json
	@$(BIN)/python benchmarks/zoo.py --json out/zoo.json

clean: ## remove what the other targets made in this folder (fetched weights and photographs stay in ~/.cache/fxquant)
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find fxquant -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.framework: Makefile
	@echo "== $(VENV): $(FRAMEWORK), with $(PYTHON) (about a minute, once)"
	@test -n "$(PYTHON)" || { echo "no python3.11 or python3 on PATH; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(BUILD) $(FRAMEWORK)
	@touch $@

$(READY): $(VENV)/.framework pyproject.toml $(wildcard setup.py) $(NATIVE)
	@echo "== fxquant: native kernels and an editable install"
	@$(PIP) --no-build-isolation --editable '.[dev,examples]'
	@touch $@
