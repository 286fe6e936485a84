# Each target sets up all that it needs; a second call does nothing that is done already.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# PYTHON=...: an interpreter of 3.11 to 3.13; by default the first that is found
export PYTHON
# SAMEBYTES_TORCH_INDEX=...: where to ask for torch's CPU build if the configured package index has none
export SAMEBYTES_TORCH_INDEX
SAMEBYTES_TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# JUPYTER=...: options of Jupyter for `make lab` and `make live`, such as --no-browser or --port=9000
JUPYTER ?=

BIN := .venv/report/bin
STUDY ?= quick
# BENCH=...: options of `make bench`; --help lists them
BENCH ?=

.PHONY: help report book lab live test test-fast test-engine lint venv engine openai2 jupyter thebe axe browser model docs publish archive bench lock clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 14

report: venv engine model ## measure study STUDY (default: quick) on this machine and build the page
	@$(BIN)/samebytes study $(STUDY)
	@$(BIN)/samebytes summary $(STUDY)
	@$(MAKE) --no-print-directory book

book: venv ## build the page from the records in results/
	@$(BIN)/samebytes book

lab: venv jupyter ## open the pages and the notebooks in JupyterLab, on this machine alone
	@.venv/lab/bin/python -P src/samebytes/live.py lab $(JUPYTER)

live: book jupyter thebe ## serve the pages with their cells to edit and run in place, on this machine alone
	@.venv/lab/bin/python -P src/samebytes/live.py live $(JUPYTER)

test: venv engine openai2 jupyter thebe axe browser model lint ## everything: lint, types, the book, fast tests, real engine
	@$(BIN)/samebytes book
	@$(BIN)/python -m pytest -m "not engine"
	@.venv/openai2/bin/python -m pytest tests/test_client.py
	@$(BIN)/python -m pytest -m engine

test-fast: venv ## tests that need neither the engine nor the package index
	@$(BIN)/python -m pytest -m "not engine and not slow"

test-engine: venv engine model ## tests on the real CPU engine
	@$(BIN)/python -m pytest -m engine

lint: venv ## ruff and mypy
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy

venv: ## the report environment (.venv/report)
	@tools/venv.sh report

engine: ## the CPU engine (.venv/engine)
	@tools/venv.sh engine

openai2: ## the measuring path with openai 2 and httpx (.venv/openai2)
	@tools/venv.sh openai2

jupyter: venv ## JupyterLab (.venv/lab), whose kernel is the report environment
	@tools/venv.sh lab

thebe: ## what a page runs its cells with (.venv/npm)
	@tools/vendor.sh thebe-core

axe: ## what finds barriers on a page, for the browser tests (.venv/npm)
	@tools/vendor.sh axe-core

browser: ## Chromium, for the browser tests
	@tools/browser.sh

model: venv ## the embedded model, in the user's cache
	@$(BIN)/python -m samebytes.model

docs: venv ## write the pages of commands and of the record's fields from the code
	@$(BIN)/python -m samebytes.docs

publish: venv browser ## the site in dist/site, for any static host (SAMEBYTES_BASE_URL=https://...: where it will lie)
	@$(BIN)/python -m samebytes.publish

archive: venv ## records and tables as one file to deposit, in dist/
	@$(BIN)/python -m samebytes.archive

bench: venv engine model ## how much of a measurement is the stopwatch: streaming clients compared (BENCH=--quick: a trial)
	@for tool in guidellm aiperf; do tools/venv.sh $$tool || echo "bench goes on without $$tool"; done
	@$(BIN)/python -m bench $(BENCH)

lock: venv ## resolve the lock files anew
	@tools/lock.sh

clean: ## remove environments and builds (not records, not the cached model)
	@rm -rf .venv _build .pytest_cache .mypy_cache .ruff_cache .hypothesis
