# Everything a developer or a new user runs. `make help` lists it.
# Needs Python 3.11 or newer with venv, gcc and make; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AUDIT := $(VENV)/audit
STAMP := $(VENV)/.installed
VERSION := 0.1.0
# three processes, for tests of workers, for those of sweeps under Ray, and for the rest, while those
# wait (tests/conftest.py)
IN_PARALLEL := --numprocesses 3 --no-loadscope-reorder
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--no-warn-script-location --constraint constraints.txt

# what DeepSpeed would compile when a trial, or a test, is the first to ask for it
define COMPILE
from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder
for builder in (CPUAdamBuilder(), ShareMemCommBuilder(), AsyncIOBuilder()):
    if builder.is_compatible():  # the last one wants libaio's headers
        builder.load()
endef
export COMPILE

.DEFAULT_GOAL := help
# each of the hundreds of processes that tests start would compile all our modules
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup demo test test-thorough fuzz-plans lint type arch pins audit check bench gpu chaos image format clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Create .venv and install everything, pinned (does nothing if up to date)

# torch goes first and alone: with its version pinned, what comes after cannot pull another build.
# Which build it is, pip decides: a CPU build (+cpu) wins wherever pip is pointed at one, as with
# PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS; else Linux gets the CUDA one, which runs on CPU as well.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Plimsoll needs Python 3.11 or newer; say make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(PIP_INSTALL) torch
	@$(BIN)/python -m pip uninstall --quiet --quiet --yes plimsoll # the name before plimsoll-tune
	@$(PIP_INSTALL) --editable '.[dev]'
	@echo "Compiling DeepSpeed's operators for CPUs (a minute or, with libaio's headers, three, once on a machine) ..."
	@PATH="$(CURDIR)/$(BIN):$$PATH" DS_ACCELERATOR=cpu $(BIN)/python -c "$$COMPILE" >/dev/null 2>&1 \
		|| echo "That failed; what needs them says why."
	@touch $@

demo: setup ## Run a real sweep of a small Llama on this machine's CPU, under five minutes
	@test -f demo/demo.yaml || $(BIN)/plimsoll init --example demo demo
	@cd demo && ../$(BIN)/plimsoll tune demo.yaml

test: setup ## Run the test suite
	@$(BIN)/python -m pytest $(IN_PARALLEL)

test-thorough: setup ## Run the tests that prove the same at greater length
	@HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(IN_PARALLEL) \
		--override-ini faulthandler_timeout=1800 -m '(thorough or property) and not alone'
	@$(BIN)/python -m pytest -m alone

fuzz-plans: setup ## Run 200 legal plans drawn over all knobs; none may crash
	@$(BIN)/python -m tests.workers.fuzz

lint: setup ## Check style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

type: setup ## Check types
	@$(BIN)/mypy

arch: setup ## Check which package may import which
	@$(BIN)/lint-imports

# What can be known of packages without a network: that they agree, and are the pinned ones.
pins: setup ## Check that the installed packages agree with each other and with constraints.txt
	@$(BIN)/python -m pip check --quiet
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//; s/+cu[0-9]*$$//' \
		| grep --invert-match --line-regexp --fixed-strings --file constraints.txt \
		| sed 's/^/not pinned by constraints.txt: /' | tee /dev/stderr | grep --quiet . && exit 1 || exit 0

audit: setup ## Ask the advisory databases about every pinned package (needs the internet)
	@test -x $(AUDIT)/bin/pip-audit \
		|| { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet pip-audit; }
	@$(AUDIT)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

check: lint type arch pins ## Check style, types, architecture and packages

bench: setup ## Measure what a trial costs, what it does to the next, and how fast plans are forecast
	@$(BIN)/python -m benchmarks.trial_overhead
	@$(BIN)/python -m benchmarks.engines_in_turn
	@$(BIN)/python -m benchmarks.planner

gpu: setup ## Measure on this machine's GPU what docs/gpu.md lists, for hours
	@$(BIN)/python -m benchmarks.gpu

chaos: setup ## Run 32 sweeps under 200 injected faults, for hours; goes on from plimsoll-runs/chaos.json
	@mkdir -p plimsoll-runs
	@$(BIN)/python -m benchmarks.chaos --out plimsoll-runs/chaos.json

image: ## Build the container image, for Kubernetes (needs docker)
	docker build --tag plimsoll:$(VERSION) .

format: setup ## Put the code into its style
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

clean: ## Remove .venv and caches; results in plimsoll-runs stay
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
