# `make demo` and `make test` are all the set-up there is: each makes its own virtual environment.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := out
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOAK_MINUTES ?= 30
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
NEWEST := $(VENV)/engines-newest

.PHONY: help demo test lint soak engines-newest bench collector samples screenshots clean

help:
	@echo "make demo     record a tiny generation, analyse it and the samples, print the pages' paths"
	@echo "make test     ruff, mypy, import-linter and the tests"
	@echo "make soak     the long stress tests, at most $(SOAK_MINUTES) minutes"
	@echo "make engines-newest  check the collector's hooks on the newest vLLM and SGLang"
	@echo "make bench    measure speed and memory against HTA; takes minutes and several GB of memory"
	@echo "make collector  build $(OUT)/collector.pyz, the collector as one file"
	@echo "make samples  render the samples' pages and the JSON schema anew (two minutes)"
	@echo "make clean    remove $(VENV), $(OUT) and caches"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name it with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# The stamps make a second run start at once; a changed pyproject.toml installs again.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV); the first time this downloads PyTorch and takes minutes" >&2
	$(PIP) install --editable '.[samples]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV); the first time this downloads PyTorch and takes minutes" >&2
	$(PIP) install --editable '.[dev]'
	$(BIN)/python -m pip check
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@mkdir -p $(OUT)/recorded
	@echo "recording a tiny generation and analysing it" >&2
	@$(BIN)/python samples/record_cpu.py --out $(OUT)/recorded --only tiny-llama-cpu >/dev/null
	@pages=(); \
	while IFS= read -r trace; do \
	  name=$$(basename "$$trace" | sed -E 's/\.json(\.gz|\.zst)?$$//'); \
	  [[ $$trace != $(OUT)/* ]] || name="recorded-$$name"; \
	  $(BIN)/traceanalyzer report "$$trace" -o "$(OUT)/$$name.html" --force --quiet; \
	  pages+=("$(CURDIR)/$(OUT)/$$name.html"); \
	done < <(find $(OUT)/recorded samples -name '*.json.gz' -o -name '*.json.zst' | sort); \
	echo "Open these pages in a browser:"; printf '  %s\n' "$${pages[@]}"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The engines that the collector hooks into: their Python files alone, nothing of them is installed.
$(VENV)/.engines: tests/collect/fetch_wheels.py | $(VENV)/.dev
	@echo "downloading the wheels of vLLM and SGLang" >&2
	$(BIN)/python tests/collect/fetch_wheels.py $(VENV)/engines
	@touch $@

# HTA under its new name, which cannot be installed beside the old one.
$(VENV)/.successor: tests/analysis/make_successor.py $(VENV)/.dev
	$(BIN)/python tests/analysis/make_successor.py $(VENV)/traceinsight
	@touch $@

# One worker more than cores: many tests wait for processes and servers. Each worker takes neighbours, which share
# fixtures, and steals what is left of another's at the end.
test: lint $(VENV)/.engines $(VENV)/.successor
	$(BIN)/python -m pytest -m "not soak" -n $(WORKERS) --dist worksteal

soak: $(VENV)/.dev
	timeout --foreground $(SOAK_MINUTES)m $(BIN)/python -m pytest -m soak

engines-newest: $(VENV)/.dev
	@$(BIN)/python tests/collect/fetch_wheels.py $(NEWEST) vllm sglang
	@TRACEANALYZER_ENGINES=$(CURDIR)/$(NEWEST) $(BIN)/python -m pytest tests/collect/test_engines.py -k hook_targets

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

collector: $(VENV)/.dev
	$(BIN)/python scripts/collector.py $(OUT)/collector.pyz

samples: $(VENV)/.dev
	@mkdir -p $(OUT)
	$(BIN)/traceanalyzer report samples/tiny-llama-cpu.json.gz -o samples/tiny-llama-cpu.html --quiet
	for name in alone eight; do \
	  $(BIN)/traceanalyzer simulate --preset $$name -o $(OUT)/simulated-8b-$$name.json.gz --force; \
	  $(BIN)/traceanalyzer report $(OUT)/simulated-8b-$$name.json.gz -o samples/simulated-8b-$$name.html --quiet; \
	done
	$(BIN)/python docs/schema.py > docs/report.schema.json

screenshots: $(VENV)/.dev
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
