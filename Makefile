# The two commands: `make serve` and `make test`. Each sets up .venv by itself; `make help` lists the rest.

PYTHON ?= python3
ARGS ?=
VENV := .venv
CLIENTS := .venv-clients
CODE := src tests tools benchmarks
BIN := $(VENV)/bin
# Not compiled to bytecode: most of torch is never imported, and compiling all of it takes longer than the first start.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

# A stamp that is newer than its requirements means that there is nothing to install.
INSTALLED := $(VENV)/.installed
INSTALLED_FOR_TESTS := $(VENV)/.installed-for-tests
INSTALLED_FOR_CLUSTER := $(VENV)/.installed-for-cluster
REQUIREMENTS := pyproject.toml constraints.txt

# Some machines forbid Python to keep bytecode. Every process would then compile what it imports of torch anew: the
# server and most processes of the tests would start in twice the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test check format browser clients ray cluster gpu soak clean lint types suite

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(INSTALLED) ## set up and start the server; options in ARGS="..."
	$(BIN)/facet serve $(ARGS)

# Types are checked beside the tests, not before them: mypy keeps one processor busy for a minute.
test: $(INSTALLED_FOR_TESTS) lint ## set up and run all checks and all tests
	@$(MAKE) --no-print-directory --jobs 2 types suite

check: $(INSTALLED_FOR_TESTS) lint types ## format, lint, types, and the direction of imports; a minute at most
	$(BIN)/python -m pytest tests/test_architecture.py

format: $(INSTALLED_FOR_TESTS) ## fix formatting and simple lint errors
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

browser: ## install Chromium for the tests of the page, which are skipped without it (Debian, as root)
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
		echo "Chromium is already installed."; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver; \
	else \
		echo "Chromium is missing and cannot be installed from here. On Debian, as root:" >&2; \
		echo "  apt-get install chromium chromium-driver" >&2; exit 1; \
	fi

clients: $(INSTALLED) $(CLIENTS)/.installed ## try heavier clients (langchain, openai-agents, AI SDK, ...) on the bundled model
	$(BIN)/python tests/clients/run.py $(CLIENTS)/bin/python $(ARGS)

ray: $(INSTALLED_FOR_CLUSTER) ## install Ray for `make cluster`: 380 MB

# Warnings of Ray are its own.
cluster: $(INSTALLED_FOR_CLUSTER) ## try ranks and replicas on a Ray cluster of two nodes on this machine
	FACET_CLUSTER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster --timeout 300 -W default --disable-warnings

# By name, as they end: a run that is stopped has said what failed.
gpu: $(INSTALLED_FOR_TESTS) ## try kernels and models on an NVIDIA GPU
	$(BIN)/python -m pytest tests/gpu -vv --timeout 600 --numprocesses 8 --dist loadgroup

soak: $(INSTALLED_FOR_TESTS) ## kill a hundred ranks at random moments, where `make test` kills five
	FACET_RANK_KILLS=100 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engine/test_ranks.py -k killed --timeout 60

clean: ## remove .venv and caches
	rm -rf $(VENV) $(CLIENTS) tests/clients/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lint: $(INSTALLED_FOR_TESTS)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(INSTALLED_FOR_TESTS)
	$(BIN)/mypy

suite: $(INSTALLED_FOR_TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 300 --numprocesses auto --maxprocesses 4 \
		--dist loadfile --no-loadscope-reorder

$(INSTALLED): $(REQUIREMENTS) | $(BIN)/python
	$(PIP_INSTALL) --editable .
	@touch $@

$(INSTALLED_FOR_TESTS): $(REQUIREMENTS) | $(BIN)/python
	$(PIP_INSTALL) --editable '.[test]'
	@touch $(INSTALLED) $@

$(INSTALLED_FOR_CLUSTER): $(REQUIREMENTS) | $(BIN)/python
	$(PIP_INSTALL) --editable '.[test,cluster]'
	@touch $(INSTALLED) $(INSTALLED_FOR_TESTS) $@

$(CLIENTS)/.installed: tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no $(PYTHON) on this machine. Give another: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
		echo "Facet needs Python 3.11 to 3.13, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Give another: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# The pip that comes with Python 3.11 takes a minute longer to find all packages. Without a newer one, it will do.
	-@$(PIP_INSTALL) --upgrade pip
