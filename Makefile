# Everything a developer or a new user runs. `make help` lists it.
# Needs Python 3.11 or newer with venv, and make; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup
DEVELOPERS := $(VENV)/.developers
DOCS := $(VENV)/.docs
# the git tag is the only place of the version; sources without one, as in an image, take the fallback
VERSION := $(shell sed -n 's/^fallback_version = "\(.*\)"/\1/p' pyproject.toml)
# three processes, for tests of workers, for those of sweeps under Ray, and for the rest, while those
# wait (tests/conftest.py)
IN_PARALLEL := --numprocesses 3 --no-loadscope-reorder
AT_LENGTH := --timeout 1800 --override-ini faulthandler_timeout=1790
MINUTES ?= 35
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--no-warn-script-location --constraint constraints.txt
UV := $(BIN)/uv
UV_INSTALL := $(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt

.DEFAULT_GOAL := help
# each of the hundreds of processes that tests start would compile all our modules
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup developers demo test test-pure test-thorough fuzz-plans parity lint type arch pins audit sbom lock check docs bench gpu gpu-kit chaos image image-cuda push digests format clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(SETUP) ## Create .venv with what a sweep needs, pinned (does nothing if up to date)

# torch goes first and alone: with its version pinned, what comes after cannot pull another build.
# Which build it is, pip decides: a CPU build (+cpu) wins wherever pip is pointed at one, as with
# PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS; else Linux gets the CUDA one, which runs on CPU as well.
# uv, which knows nothing of pip's settings, installs the rest in seconds; without it, pip does.
$(SETUP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Plimsoll needs Python 3.11 or newer; say make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (half a minute to a few, by the network) ..."
	@$(PIP_INSTALL) torch
	@$(PIP_INSTALL) uv || echo "uv cannot be installed: pip installs the rest, which takes longer"
	@$(call install,.[ray$(comma)mlflow$(comma)accelerate])
	@touch $@

developers: $(DEVELOPERS) ## Add all extras and the developers' tools to .venv

$(DEVELOPERS): $(SETUP)
	@echo "Installing all extras and developers' tools into $(VENV) ..."
	@$(call install,.[dev])
	@touch $@

$(DOCS): $(SETUP)
	@$(call install,.[docs])
	@touch $@

comma := ,
install = { test -x $(UV) && $(UV_INSTALL) --editable '$(1)'; } || $(PIP_INSTALL) --editable '$(1)'

demo: setup ## Run a real sweep of a small Llama on this machine's CPU, about two minutes
	@test -f demo/demo.yaml || $(BIN)/plimsoll init --example demo demo
	@cd demo && ../$(BIN)/plimsoll tune demo.yaml

test: developers ## Run all pure tests, and one witness of each capability on real processes
	@$(BIN)/python -m pytest $(IN_PARALLEL)

# On a Python without torch, the tests that need none: PYTHON=python3.13
PURE := tests/search_spaces tests/orchestrator/core
test-pure: developers ## Run the tests that need no torch on another Python: PYTHON=python3.13
	@set -e; folder=$$(mktemp -d); trap 'rm -r "$$folder"' EXIT; \
	$(PYTHON) -m venv --without-pip "$$folder"; \
	$(UV) pip install --quiet --python "$$folder/bin/python" --constraint constraints.txt \
		hypothesis jinja2 jsonschema numpy packaging psutil pydantic pytest pytest-timeout pyyaml rich scipy typer; \
	PYTHONPATH=$(CURDIR) "$$folder/bin/python" -m pytest --quiet -p no:cacheprovider $(PURE) \
		--ignore tests/search_spaces/costs/test_compiled_memory.py

# Tests that take a machine for themselves come last.
test-thorough: developers ## Run longer tests: PART=workers, sweeps, faults or exports; none begins after MINUTES=35
	@until=$$(date --date '+$(MINUTES) minutes' +%s); \
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(IN_PARALLEL) $(if $(PART),--part=$(PART)) \
		$(AT_LENGTH) --until $$until -m '(thorough or property) and not alone' && \
	{ $(BIN)/python -m pytest $(AT_LENGTH) $(if $(PART),--part=$(PART)) --until $$until -m alone \
		|| test $$? = 5; } # faults and exports have some

fuzz-plans: developers ## Run 300 legal plans drawn over all knobs; none may crash
	@$(BIN)/python -m tests.workers.fuzz

parity: developers ## Compare steps of 88 architectures and 119 functions under 11 to 49 plans with a plain loop
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.workers.parity

lint: developers ## Check style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

type: developers ## Check types
	@$(BIN)/mypy

arch: developers ## Check which package may import which
	@$(BIN)/lint-imports

# What can be known of packages without a network: that they agree, and are the pinned ones.
pins: developers ## Check that the installed packages agree with each other and with constraints.txt
	@$(BIN)/python -m pip check --quiet
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//; s/+cu[0-9]*$$//' \
		| grep --invert-match --line-regexp --fixed-strings --file constraints.txt \
		| sed 's/^/not pinned by constraints.txt: /' | tee --append /dev/stderr | grep --quiet . && exit 1 || exit 0

audit: developers ## Ask the advisory databases about every pinned package (needs the internet)
	@$(UV) tool run --constraints constraints.txt pip-audit --requirement constraints.txt --no-deps --disable-pip
	@$(UV) tool run --constraints constraints.txt pip-audit --requirement image.lock --require-hashes --disable-pip

sbom: developers ## Write what an image installs, with hashes, to plimsoll.cdx.json (CycloneDX)
	@$(UV) tool run --constraints constraints.txt --from cyclonedx-bom cyclonedx-py requirements image.lock \
		--output-file plimsoll.cdx.json

# pip refuses to install a local project from a file with hashes, so constraints.txt, which developers
# install by, has none, and the image has a file of its own, made from it.
lock: developers ## Write image.lock anew from constraints.txt (needs the internet)
	@set -e; folder=$$(mktemp -d); trap 'rm -r "$$folder"' EXIT; \
	sed -n '/^#/p' image.lock > "$$folder/image.lock"; \
	printf '.[all]\nsetuptools-scm\n' | $(UV) pip compile --quiet --generate-hashes --no-annotate --no-header \
		--python-version 3.11 --python-platform x86_64-manylinux_2_28 --constraint constraints.txt \
		--no-emit-package plimsoll-tune - >> "$$folder/image.lock"; \
	mv "$$folder/image.lock" image.lock

# the checkers take a core each
check: ## Check style, types, architecture and packages
	@$(MAKE) --no-print-directory developers
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target type lint arch pins

docs: $(DOCS) ## Build the users' pages as a site into build/site; a link that leads nowhere fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: developers ## Measure what a trial costs, and how fast plans are forecast
	@$(BIN)/python -m benchmarks.trial_overhead
	@$(BIN)/python -m benchmarks.planner

gpu: developers ## Measure plans and forecasts on this machine's GPU, half an hour
	@$(BIN)/python -m benchmarks.gpu.half_hour

gpu-kit: developers ## Pack what a GPU machine without a network lacks for it, into .gpu-kit (Python 3.12)
	@$(BIN)/python -m benchmarks.gpu.kit

chaos: developers ## Run 60 sweeps under 400 injected faults, for hours; goes on from plimsoll-runs/chaos.json
	@mkdir -p plimsoll-runs
	@$(BIN)/python -m benchmarks.chaos --out plimsoll-runs/chaos.json

image: ## Build the container images, for Kubernetes (needs docker)
	docker build --tag plimsoll:$(VERSION) .
	docker build --tag plimsoll-slim:$(VERSION) --target slim .

image-cuda: image ## Build plimsoll-cuda too, with NVIDIA's compiler for DeepSpeed's operators (some 6 GB more)
	docker build --tag plimsoll-cuda:$(VERSION) --build-arg BASE=plimsoll:$(VERSION) --file Dockerfile.cuda .

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

format: developers ## Put the code into its style
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

clean: ## Remove .venv and caches; results in plimsoll-runs stay
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
