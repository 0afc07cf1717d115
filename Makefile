# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo`, `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint types unit bench clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	touch $(STAMP)

## demo: the environment, a real conversion of the sample export, its statistics, a short training
demo: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tools/demo.sh

## test: the environment, lint, types, tests
test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow"

## bench: the full-scale checks and every figure the README quotes (one to two hours, 24 GiB of memory for the baselines)
bench: $(STAMP)
	$(BIN)/python -m pytest -m slow
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tools/bench/all.sh

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
