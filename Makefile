# Everything a developer or a new user runs. `make help` lists it.
# Needs Python 3.11 or newer with venv, gcc and make; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
STAMP := $(VENV)/.installed
VERSION := 0.1.0
# three processes, for tests of workers, for those of sweeps under Ray, and for the rest, while those
# wait (tests/conftest.py)
IN_PARALLEL := --numprocesses 3 --no-loadscope-reorder
AT_LENGTH := --timeout 1800 --override-ini faulthandler_timeout=1790
MINUTES ?= 35
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--no-warn-script-location --constraint constraints.txt

# What a trial, or a test, would compile when it is the first to ask for it. What hangs is ended after 20
# minutes, and its stack says where.
define COMPILE
import faulthandler
faulthandler.dump_traceback_later(1200)
import torch
from workers.parallel import deepspeed_features as features
cpu = torch.device("cpu")
features.load_deepspeed(cpu)
if (lack := features.missing_for_cpu_adam()) is None:
    features.load_cpu_adam()
    if (lack := features.missing_for_nvme(cpu)) is None:
        features.load_nvme()
if lack is not None:
    print(lack)
endef
export COMPILE

.DEFAULT_GOAL := help
# each of the hundreds of processes that tests start would compile all our modules
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup demo test test-thorough fuzz-plans parity lint type arch pins audit sbom lock check bench gpu chaos image push digests format clean

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
	@timeout --kill-after 10 1210 $(BIN)/python -c "$$COMPILE" >$(VENV)/operators.log 2>&1 \
		|| { tail -20 $(VENV)/operators.log; echo "That failed ($(VENV)/operators.log); what needs them says why."; }
	@touch $@

demo: setup ## Run a real sweep of a small Llama on this machine's CPU, under five minutes
	@test -f demo/demo.yaml || $(BIN)/plimsoll init --example demo demo
	@cd demo && ../$(BIN)/plimsoll tune demo.yaml

test: setup ## Run the test suite
	@$(BIN)/python -m pytest $(IN_PARALLEL)

test-thorough: setup ## Run the tests that prove the same at greater length; none begins after MINUTES=35
	@until=$$(date --date '+$(MINUTES) minutes' +%s); \
	$(BIN)/python -m pytest $(AT_LENGTH) --until $$until -m alone && \
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(IN_PARALLEL) \
		$(AT_LENGTH) --until $$until -m '(thorough or property) and not alone'

fuzz-plans: setup ## Run 200 legal plans drawn over all knobs; none may crash
	@$(BIN)/python -m tests.workers.fuzz

parity: setup ## Compare steps of 88 architectures under 15 to 38 plans with a plain loop
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.workers.parity

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
		| sed 's/^/not pinned by constraints.txt: /' | tee --append /dev/stderr | grep --quiet . && exit 1 || exit 0

$(TOOLS)/.installed: requirements-tools.lock
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --require-hashes --requirement requirements-tools.lock
	@touch $@

audit: $(TOOLS)/.installed ## Ask the advisory databases about every pinned package (needs the internet)
	@$(TOOLS)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip
	@$(TOOLS)/bin/pip-audit --requirement requirements-cuda.lock --require-hashes --disable-pip

sbom: $(TOOLS)/.installed ## Write what a release installs, with hashes, to plimsoll.cdx.json (CycloneDX)
	@$(TOOLS)/bin/cyclonedx-py requirements requirements-cuda.lock --output-file plimsoll.cdx.json

# In a lock file, torch's CPU build has a local version, and pip must be pointed at it (see setup).
LOCK := $(TOOLS)/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28
lock: $(TOOLS)/.installed ## Write the lock files anew from constraints.txt (needs the internet and a CPU build of torch)
	@set -e; folder=$$(mktemp -d); trap 'rm -r "$$folder"' EXIT; \
	sed 's/^torch==\([^+]*\)$$/torch==\1+cpu/' constraints.txt > "$$folder/cpu.txt"; \
	cp constraints.txt "$$folder/cuda.txt"; \
	$(LOCK) pyproject.toml --extra all --constraint "$$folder/cpu.txt" \
		$${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} > "$$folder/cpu.lock"; \
	$(LOCK) pyproject.toml --extra all --constraint "$$folder/cuda.txt" > "$$folder/cuda.lock"; \
	printf '%s\n' cyclonedx-bom pip-audit uv | $(LOCK) - > "$$folder/tools.lock"; \
	for kind in cpu cuda tools; do \
		sed -n '/^#/p' requirements-$$kind.lock > "$$folder/head"; \
		cat "$$folder/head" "$$folder/$$kind.lock" > requirements-$$kind.lock; \
	done

check: lint type arch pins ## Check style, types, architecture and packages

bench: setup ## Measure what a trial costs, what it does to the next, and how fast plans are forecast
	@$(BIN)/python -m benchmarks.trial_overhead
	@$(BIN)/python -m benchmarks.engines_in_turn
	@$(BIN)/python -m benchmarks.planner

gpu: setup ## Measure on this machine's GPU what docs/gpu.md lists, for hours; SHORT=1: 25 minutes
	@$(BIN)/python -m benchmarks.gpu $(if $(SHORT),--short)

chaos: setup ## Run 60 sweeps under 400 injected faults, for hours; goes on from plimsoll-runs/chaos.json
	@mkdir -p plimsoll-runs
	@$(BIN)/python -m benchmarks.chaos --out plimsoll-runs/chaos.json

image: ## Build the container images, for Kubernetes (needs docker)
	docker build --tag plimsoll:$(VERSION) .
	docker build --tag plimsoll-slim:$(VERSION) --target slim .

# what it prints is what `kustomize edit set image plimsoll=...` takes
push: image ## Push the images to REGISTRY=..., and print them with the digests that it gave them
	@test -n "$(REGISTRY)" || { echo "Say where to: make push REGISTRY=registry.example.com/team" >&2; exit 2; }
	@set -e; for name in plimsoll plimsoll-slim; do \
		docker tag $$name:$(VERSION) $(REGISTRY)/$$name:$(VERSION); \
		docker push --quiet $(REGISTRY)/$$name:$(VERSION) >/dev/null; \
		docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' $(REGISTRY)/$$name:$(VERSION) \
			| grep --fixed-strings "$(REGISTRY)/$$name@sha256:"; \
	done

OVERLAY ?= k8s/overlays/cloud
digests: ## Refuse OVERLAY=FOLDER unless each of its images is pinned by a digest (needs kubectl)
	@rendered=$$(kubectl kustomize "$(OVERLAY)") || exit 2; \
	printf '%s\n' "$$rendered" | sed -n 's/^ *\(- \)\{0,1\}image: //p' | sort --unique \
		| grep --invert-match '@sha256:[0-9a-f]\{64\}$$' | sed 's/^/no digest: /' \
		| tee --append /dev/stderr | grep --quiet . && exit 1 || exit 0

format: setup ## Put the code into its style
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

clean: ## Remove .venv and caches; results in plimsoll-runs stay
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
