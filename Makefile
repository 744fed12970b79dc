# `make run` trains the first example, `make test` runs the tests, `make lint` checks the style.
# Everything lives in this folder: the environment in .venv, compiled programs in .cache.

PYTHON ?= python3
BIN := .venv/bin
CACHE := $(CURDIR)/.cache/jax

# Compiled programs are kept, however quickly they were compiled.
export JAX_COMPILATION_CACHE_DIR := $(CACHE)
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1

.PHONY: run test lint notebooks clean

run: .venv/installed
	$(BIN)/fedjax-fair run

test: .venv/installed-test
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# What readers see is made from the text, outputs and all.
notebooks: .venv/installed-test
	$(BIN)/jupytext --quiet --to ipynb notebooks/*.py
	$(BIN)/jupyter-execute --inplace notebooks/*.ipynb

clean:
	rm -rf .venv .cache

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: .venv/created pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
