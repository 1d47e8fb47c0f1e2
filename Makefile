# Needs Python 3.11 or newer and GNU make. `make help` lists the targets.

PYTHON ?= python3
# One more test at a time than there are cores: many wait for processes.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# What the tests need; `deep` is torch, for the neural networks, `monitor` the pages.
TEST_EXTRAS := dev,deep,monitor

VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes: modules are compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

# An install first removes all stamps, so one that broke off starts again from an empty environment.
# `test` installs all that `demo` needs.
CREATED := $(VENV)/.created
DEMO_READY := $(VENV)/.ready-demo
TEST_READY := $(VENV)/.ready-test

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint quick check bench format clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: $(DEMO_READY) ## set up what is missing, then run the demonstration
	$(BIN)/tablepuppet demo

test: $(TEST_READY) ## set up what is missing, then run all tests, with doctests and the examples in the docs
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(TEST_READY) ## formatting, lint rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

quick: lint ## lint, and the tests that start no processes and are not slow: under two minutes on two cores
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not processes and not slow"

check: lint test ## everything CI runs: lint and test

bench: $(TEST_READY) ## run the benchmarks
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.mapping
	$(BIN)/python -m benchmarks.learning
	$(BIN)/python -m benchmarks.privacy
	$(BIN)/python -m benchmarks.privacy.useful
	$(BIN)/python -m benchmarks.learning.defaults
	$(BIN)/python -m benchmarks.learning.networks
	$(BIN)/python -m benchmarks.learning.network_solvers
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.wire
	$(BIN)/python -m benchmarks.explore
	$(BIN)/python -m benchmarks.wide
	$(BIN)/python -m benchmarks.algebra
	$(BIN)/python -m benchmarks.deep.joins
	$(BIN)/python -m benchmarks.deep.fedonce
	$(BIN)/python -m benchmarks.deep.tabvfl

format: $(TEST_READY) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "TablePuppet needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.11" >&2; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(DEMO_READY): pyproject.toml constraints.txt | $(CREATED)
	@echo "Installing tablepuppet[demo] into $(VENV); the first time takes a minute or two"
	@rm -f $(CREATED) $(DEMO_READY) $(TEST_READY)
	@$(INSTALL) -e '.[demo]'
	@touch $(CREATED) $@

$(TEST_READY): pyproject.toml constraints.txt | $(CREATED)
	@echo "Installing tablepuppet[$(TEST_EXTRAS)] into $(VENV); the first time takes a minute or two"
	@rm -f $(CREATED) $(DEMO_READY) $(TEST_READY)
	@$(INSTALL) -e '.[$(TEST_EXTRAS)]'
	@touch $(CREATED) $(DEMO_READY) $@
