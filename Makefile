# Everything a fresh checkout needs. `make demo` and `make test` start from nothing but Python (3.11 or newer), git and make.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
# A uv on the PATH is used as it is; otherwise one is put into .tools, away from the project's own environment.
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
WORKERS ?= 2
SEED ?=
SEEDS ?= 200

export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
export UV_PYTHON_DOWNLOADS := never
# Whom this machine trusts, uv trusts: also a company's own authority. The second name is that of older releases.
export UV_SYSTEM_CERTS ?= 1
export UV_NATIVE_TLS ?= 1
# What a fresh machine waits for (packages, wheels) and what it computes (types, images) go on beside each other.
MAKEFLAGS += --jobs=2
# Start-up is a feature: modules are compiled once, when they are installed.
SYNC := sync --quiet --frozen --inexact --compile-bytecode --python $(PYTHON)

.DEFAULT_GOAL := help
.PHONY: help demo test unit test-slow chaos lint format typecheck bench docs helper interop setup setup-dev system clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: setup  ## run a real task to a score: no container engine, no account
	@$(BIN)/agent-env run hello

test: setup-dev system interop lint  ## install what the tests need, then run them all
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

unit: setup-dev  ## the tests that need no engine, no database server and no process of their own: less than a minute
	$(BIN)/python -m tests.unit -n $(WORKERS) $(ARGS)

test-slow: setup-dev system  ## the long suites: soak, fuzz, large histories
	$(BIN)/python -m pytest -n $(WORKERS) -m slow -o timeout=3600 $(ARGS)

chaos: setup-dev system  ## kill -9 at $(SEEDS) seeded moments; SEED=n replays one
	$(BIN)/python -m tests.chaos --kills $(SEEDS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos --places containers --database sqlite --kills $(SEEDS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.desk $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m pytest -q -m slow tests/acceptance/test_resuming_twice.py

lint: setup-dev  ## style, types, and the import contract between floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup-dev  ## print the figures that the project promises, beside a bare interpreter's
	$(BIN)/python -m benchmarks

docs: setup-dev  ## write the generated reference pages again
	$(BIN)/python -m agent_env.cli.reference docs/reference

helper: setup-dev  ## build the helper's binaries again, bit for bit
	$(UV) $(SYNC) --all-extras --group dev --group helper
	$(BIN)/python helper/build.py

# The reference is files to read, of which one is run: that it asks for a later 3.11 than Debian 12 has keeps it from nobody.
interop: $(UV)  ## environments of their own for other people's packages, see interop/README.md
	@for lock in interop/*/uv.lock; do \
	  env -u UV_PROJECT_ENVIRONMENT $(abspath $(UV)) sync --quiet --frozen --compile-bytecode --python $(PYTHON) --project "$$(dirname "$$lock")" || exit 1; done
	@test -e interop/reference/.packages/$$(sha256sum interop/reference/requirements.txt | cut -c1-16) || { \
	  rm -rf interop/reference/.packages && $(UV) pip install --quiet --no-deps --require-hashes --python $(PYTHON) --python-version 3.12 \
	  --target interop/reference/.packages -r interop/reference/requirements.txt && \
	  touch interop/reference/.packages/$$(sha256sum interop/reference/requirements.txt | cut -c1-16); }

setup: $(UV)
	@test -x $(BIN)/agent-env || echo "installing agent-env and its packages into $(VENV): half a minute" >&2
	@$(UV) $(SYNC) --no-dev --group authoring
	@$(BIN)/python -m compileall -q src packages/agent-env-sdk/src

setup-dev: $(UV)
	@$(UV) $(SYNC) --all-extras --group dev --group helper
	@$(BIN)/python -m compileall -q src packages/agent-env-sdk/src
	@$(BIN)/python -m compileall -q -x '/test_[^/]*$$' tests

.tools/bin/uv:
	@echo "installing uv into .tools" >&2
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet uv==$(UV_VERSION) || { \
	  echo "error: uv could not be fetched; a package index is needed, PyPI or what PIP_INDEX_URL names" >&2; exit 1; }

system:
	@sh tools/install-test-system.sh

clean:  ## remove what the targets made
	rm -rf $(VENV) interop/*/.venv .tools .mypy_cache .ruff_cache .hypothesis
