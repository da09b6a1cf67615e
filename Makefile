# `make run` starts the platform, `make test` checks everything; `make` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST = SKERRY_TEST_HOME="$(CURDIR)/$(TEST_HOME)" $(BIN)/python -m pytest -q
TEST_HOME := .cache/skerry
MODELS := @cf/huggingfacetb/smollm2-135m-instruct @cf/sentence-transformers/all-minilm-l6-v2

# The versions of constraints.txt also for what builds the package itself.
PIP := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install

# One line that counts packages on a terminal; nothing but errors elsewhere.
PROGRESS := awk '/^(Collecting|Processing)/ { printf "\r\033[K  %d packages: %s", ++n, $$2; fflush() } \
	/^Installing collected/ { printf "\r\033[K  unpacking %d packages", n; fflush() } \
	END { printf "\r\033[K" }'
define install
	@if [ -t 1 ]; then $(PIP) $(1) | $(PROGRESS); else $(PIP) -qq $(1); fi
endef

.PHONY: help install run test test-all bench conformance check pyright mypy contracts format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

install: $(VENV)/.stamp-test  ## .venv with every extra and all that the tests need

run: $(VENV)/.stamp-run  ## start the platform; ARGS="--port 9000" is passed on
	@$(BIN)/skerry up $(ARGS)

test: check $(TEST_HOME)/.stamp-models  ## static checks and all tests but the slow ones; ARGS for pytest
	@echo "── pytest"
	@$(PYTEST) -n 3 --dist loadfile $(ARGS)

test-all: check $(VENV)/.stamp-test-all $(TEST_HOME)/.stamp-models  ## the slow tests too, properties at random and deeper, real clients
	@SKERRY_SHOTS="$(CURDIR)/.cache/pictures" $(PYTEST) -m "slow or not slow" --hypothesis-profile=deep $(ARGS)
	@$(MAKE) --no-print-directory conformance

check: $(VENV)/.stamp-test  ## ruff, mypy, pyright, import contracts
	@echo "── ruff"        && $(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(MAKE) --no-print-directory -j 2 pyright mypy contracts

# Each takes one core: `check` has two run at once.
pyright:
	@echo "── pyright"     && PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

mypy:
	@echo "── mypy"        && $(BIN)/mypy

contracts:
	@echo "── import contracts" && $(BIN)/lint-imports --no-logo

format: $(VENV)/.stamp-test  ## format the code, and mend what ruff can mend
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

bench: $(VENV)/.stamp-run  ## engine against engine, server against server; ARGS=--quick
	@$(BIN)/python -m bench.engine $(ARGS)
	@$(BIN)/python -m bench.server $(ARGS)

conformance: $(VENV)/.stamp-run  ## real, pinned clients against a platform of their own
	@$(BIN)/python tests/conformance/run.py $(ARGS)

clean:  ## remove .venv and everything cached in this folder; ~/.skerry stays
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
	"Skerry needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." \
	"Name another one: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing the platform into $(VENV) (once; neither torch nor jax)…"
	$(call install,-e ".[platform]")
	@touch $@

$(VENV)/.stamp-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing everything into $(VENV), torch and jax too (once, some minutes)…"
	@$(PIP) -qq --upgrade pip  # older ones know no dependency groups
	$(call install,-e ".[all]" --group dev)
	@touch $(VENV)/.stamp-run $@

$(VENV)/.stamp-test-all: $(VENV)/.stamp-test
	@echo "Installing what only long runs need into $(VENV)…"
	$(call install,--group all)
	@touch $@

$(TEST_HOME)/.stamp-models: | $(VENV)/.stamp-test
	@SKERRY_HOME="$(CURDIR)/$(TEST_HOME)" $(BIN)/skerry models pull $(MODELS)
	@touch $@
