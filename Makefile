# SPDX-License-Identifier: Apache-2.0

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.rcg-installed
VLLM := .venv-vllm
TOOLS := .venv-release
NATIVE := rcg/_native.abi3.so
NATIVE_SOURCES := $(wildcard rcg/native/*.[ch] rcg/bench/*.c)
BENCH ?=
NETNS ?=
SOAK ?=
LAB ?=
GPU ?=
NOTEBOOKS ?=
PART ?=
MINUTES ?= 20
SEED ?=
REACHES ?=
ROOM ?=
N ?= 40
VLLM_TESTS ?=
COMPARE ?=
COMPAT ?=
RELEASE ?=

# Ray's own telemetry and its hook into `uv run` have no place in tests and measurements.
export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help setup quickstart lab unit test test-all test-ci test-netns reaches mutants vllm vllm-compare native-check soak lint format types notebooks browser bench gpu pictures docs wheels release compat newcomer clean

## show this list
help:
	@awk '/^## /{text = substr($$0, 4); next} \
	      /^[a-z-]+:/ && text {name = $$1; sub(/:.*/, "", name); printf "  make %-12s %s\n", name, text} \
	      {text = ""}' $(MAKEFILE_LIST)

## create .venv and install rcg into it with everything needed to develop it
setup: $(NATIVE)

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "rcg needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# Torch comes first, so that no other package chooses its build.
$(INSTALLED): pyproject.toml setup.py constraints.txt | $(PY)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev,notebook]"
	touch $@

# The editable install has built it; after a change of the C files it is built again in place.
$(NATIVE): $(NATIVE_SOURCES) $(INSTALLED)
	$(PY) setup.py --quiet build_ext --inplace --build-temp build/temp
	touch $@

## run the hello world on a local Ray that starts by itself, with timings beside Ray Core's
quickstart: setup
	$(PY) -m rcg.demo

## open the notebooks in a JupyterLab (LAB="--no-browser --port 9999")
lab: setup
	$(PY) -m jupyterlab --notebook-dir=notebooks $(LAB)

# No unit test looks at captured log records, and capturing them visits each of torch's loggers for every test.
## the tests that start no process and need no Ray: half a minute
unit: setup
	$(PY) -m pytest -q -p no:logging -n 2 --dist loadfile --hypothesis-profile=quick tests/unit

## the tests that show most, in about ten minutes; says what it left out
test: setup
	$(PY) -m tests $(if $(SEED),--seed $(SEED))

## every test that needs no GPU, in parts of a quarter of an hour at most (PART=2/4, PART=vllm: one part of what `make test` left out)
test-all: setup
	$(PY) -m tests $(if $(PART),--part $(PART),--all) $(if $(SEED),--seed $(SEED))

## what CI runs, in so long: the core, random cases, what reaches the last changes, others (MINUTES=20 SEED=7)
test-ci: setup
	$(PY) -m tests --ci $(MINUTES) $(if $(SEED),--seed $(SEED))

## measure which sources each test file executes: tests/reaches.json (REACHES="tests/unit/test_ops.py" or --missing)
reaches: setup
	$(PY) -m tests.power.reaches $(REACHES)

## change the code where tests should see it, and count what they miss (ROOM=weights N=40 SEED=7; without ROOM: changed files)
mutants: setup
	$(PY) -m tests.power.mutants --count $(N) $(if $(ROOM),--room $(ROOM)) $(if $(SEED),--seed $(SEED))

## graphs over Ray nodes that share nothing, in network namespaces: needs root (NETNS="-x tests/netns/test_deaths.py")
test-netns: setup
	$(PY) -m tests.netns $(NETNS)

# Vision and audio packages that vLLM asks for do not load beside the torch that it pins.
$(VLLM)/.packages-installed: tests/vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip --disable-pip-version-check install --quiet --requirement tests/vllm/requirements.txt
	$(VLLM)/bin/pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VLLM)/.rcg-installed: pyproject.toml setup.py $(NATIVE_SOURCES) | $(VLLM)/.packages-installed
	$(VLLM)/bin/pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	touch $@

## rcg in a real vLLM on CPUs, in an environment of 3.7 GB of its own (VLLM_TESTS="-k killed tests/vllm")
vllm: $(VLLM)/.rcg-installed
	$(VLLM)/bin/python -m tests.vllm $(VLLM_TESTS)

## vLLM's executors beside rcg's, on CPUs: step, CPU, idle ticks (COMPARE="--rounds 1")
vllm-compare: $(VLLM)/.rcg-installed
	$(VLLM)/bin/python -m tests.vllm.compare $(COMPARE)

# The thread sanitizer sees what happens between threads only, and some of its versions need memory where the kernel
# would not put it by itself. -Wno-tsan: it knows no fences, which the recorder uses beside atomic words.
STRESS := build/native-check
STRESS_FLAGS := -std=c11 -g -O1 -fno-omit-frame-pointer -pthread -Wall -Wextra -Werror -Wno-unused-function \
  -Wno-unknown-warning-option
UNMOVED := $(shell setarch -R true 2>/dev/null && echo setarch -R)

## the stress test of the native core, in C, under the sanitizers for threads, addresses and undefined behaviour
native-check:
	mkdir -p $(STRESS)
	$(CC) $(STRESS_FLAGS) -Wno-tsan -fsanitize=thread -o $(STRESS)/threads tests/native/stress.c
	$(CC) $(STRESS_FLAGS) -fsanitize=address,undefined -fno-sanitize-recover=undefined -o $(STRESS)/addresses \
	  tests/native/stress.c
	$(CC) $(STRESS_FLAGS) -fsanitize=address,undefined -o $(STRESS)/affinity tests/native/affinity.c
	$(STRESS)/affinity
	TSAN_OPTIONS=halt_on_error=1 $(UNMOVED) $(STRESS)/threads threads 12 400
	$(STRESS)/addresses threads 12 400
	$(STRESS)/addresses processes 15 300
	TSAN_OPTIONS=halt_on_error=1 $(UNMOVED) $(STRESS)/threads crossing-threads 15 100
	$(STRESS)/addresses crossing-threads 25 150
	$(STRESS)/addresses crossing-processes 25 150

## 200,000 random executions and 200 kills, each result checked (SOAK="--nodes 2 --seed 7 --executions 5000")
soak: setup
	$(PY) -m tests.soak $(SOAK)

## ruff (rules and format), clang-format, the import contracts between rooms, and a map of reaches that is whole
lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE_SOURCES) $(wildcard tests/native/*.[ch])
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m tests.power.reaches --check

## put Python and C files into the form that `make lint` wants
format: setup
	$(PY) -m ruff check --quiet --fix .
	$(PY) -m ruff format --quiet .
	$(VENV)/bin/clang-format -i $(NATIVE_SOURCES) $(wildcard tests/native/*.[ch])

## mypy --strict on rcg/ and benchmarks/
types: setup
	$(PY) -m mypy

## run every notebook and compare what its cells show with what is stored
notebooks: setup
	$(PY) -m pytest -n 2 --dist loadfile --nbval --nbval-sanitize-with=notebooks/sanitize.cfg --nbval-current-env \
	  --nbval-cell-timeout=120 notebooks

## look at the widgets and the notebooks in a JupyterLab, with the chromium that is installed
browser: setup
	BROWSER_NOTEBOOKS=all $(PY) -m pytest -m browser tests/browser

## measure rcg beside Ray Core, Ray's compiled graph and the limit; experiments (BENCH="--rows echo --json x.json")
bench: setup
	$(PY) -m benchmarks $(BENCH)

# Not `setup`: a machine with a GPU may have no package index, only Python, torch and CuPy.
## what needs a GPU, tried and measured; says what was not run, and why (GPU="--only nccl")
gpu:
	PYTHONPATH=$(CURDIR):$(CURDIR)/widgets $(if $(wildcard $(PY)),$(PY),$(PYTHON)) -u -m tests.gpu $(GPU)

## draw the pictures and run the programs of the pages anew; run and store the notebooks (NOTEBOOKS="rdt overlap")
pictures: setup
	$(PY) -m docs.pictures.make
	$(PY) -m docs.pictures.outputs
	$(PY) -m docs.pictures.notebooks $(NOTEBOOKS)

# Not ".[docs]", which would build rcg again.
$(VENV)/.docs-installed: pyproject.toml | $(INSTALLED)
	$(PIP) install --quiet --constraint constraints.txt $$($(PY) -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	touch $@

## build the documentation site in build/site; warnings and broken links are errors
docs: setup $(VENV)/.docs-installed
	PYTHONPATH=$(CURDIR):$(CURDIR)/widgets $(PY) -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/site
	@echo "the site is build/site/index.html"

$(TOOLS)/.installed: release/requirements.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip --disable-pip-version-check install --quiet --requirement $<
	touch $@

## build sdist and wheels for x86-64 and aarch64 into dist/, check them, and try them without a compiler
wheels: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m release wheels

## what a release publishes: wheels, sdist, notes, SBOM and checksums (RELEASE=--final refuses what is not ready)
release: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m release files $(RELEASE)

## try the wheel in dist/ with each Python and Ray that rcg is for (COMPAT="3.13,2.60.0" or COMPAT=--write)
compat: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m release compat $(COMPAT)

## time a fresh `pip install` of the wheel in dist/ with the notebook extra, to the first picture
newcomer: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m release newcomer

## remove what was built, not .venv
clean:
	rm -rf build dist *.egg-info $(NATIVE) rcg/bench/_limits.abi3.so .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find rcg benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
