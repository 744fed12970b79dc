# `make run` runs the first example; `make test` runs the unit tests, `make test-integration`
# those of processes, the command line, documentation and experiments, `make test-all` all tests
# that need no accelerator; `make check` checks what differs from the last commit, by the tests
# that this can reach; `make smoke` tests the least of everything in a minute; `make lint` checks
# style and types; `make minima` tests the oldest dependencies, `make newest` those that pip
# installs today. Everything lives in this folder: environments in .venv, .venv-minima and
# .venv-newest, compiled programs in .cache.

# With an accelerator: `make EXTRAS=cuda12 run`, or `EXTRAS=tpu`. What is there stays there.

PYTHON ?= python3
# JAX 0.11 and newer need Python 3.12; pyenv keeps several versions beside that of `python3`.
OF_PYENV := $(shell pyenv root 2>/dev/null)/versions
NEWEST_PYTHON ?= $(firstword $(wildcard $(OF_PYENV)/3.13*/bin/python3.13 $(OF_PYENV)/3.12*/bin/python3.12) \
	$(shell command -v python3.13 || command -v python3.12) python3.13)
EXTRAS ?=
BIN := .venv/bin
MINIMA := .venv-minima/bin
NEWEST := .venv-newest/bin
CACHE := $(CURDIR)/.cache/jax
CHECK_TYPES := --jaxtyping-packages="fedjax_fair,beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
INTEGRATION := "integration and not slow and not gpu"
TYPED := tests/app/test_resume_methods.py tests/test_platforms.py tests/golden tests/parallel
PYTEST := -m pytest --numprocesses auto --dist worksteal --durations 25

# Compiled programs are kept, however quickly they were compiled.
export JAX_COMPILATION_CACHE_DIR := $(CACHE)
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1

# Workers of tests share the cores. Threads of OpenBLAS, which factorizations of JAX call, would
# wait for work by spinning: a third of the processor time of rounds of FedCor.
export OPENBLAS_NUM_THREADS := 1

# What differs from SINCE, which `make check SINCE=main` changes: style, types and tests in reach.
SINCE ?= HEAD

.PHONY: run check smoke test test-integration test-all lint minima newest newest-python package notebooks site clean

run: .venv/installed
	$(BIN)/fedjax-fair run groups

check: .venv/installed-test
	$(BIN)/python tests/reachable.py --since $(SINCE)

smoke: .venv/installed-test
	$(BIN)/python -m pytest -m smoke tests

test: .venv/installed-test
	$(BIN)/python $(PYTEST)

# Tests of every method also check the shapes and types of annotations, which takes a third more
# time.
test-integration: .venv/installed-test
	$(BIN)/python $(PYTEST) -m $(INTEGRATION) $(addprefix --ignore=,$(TYPED))
	$(BIN)/python $(PYTEST) -m $(INTEGRATION) $(CHECK_TYPES) $(TYPED)

test-all: .venv/installed-test
	$(BIN)/python $(PYTEST) -m "not gpu" $(CHECK_TYPES)

lint: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# Old packages warn of newer ones, so warnings are no errors here. Old tyro reports mistakes in
# other words, wants a value behind `--solver.replacement`, and prints help with argparse, which
# ignores a closed pipe and frames its lines.
minima: .venv-minima/installed
	$(MINIMA)/python $(PYTEST) -W default tests/app/test_cli.py -m "not slow" -k "not mistake and not kept and not never_fits and not closed_pipe and not wraps_once"

# Without constraints, so that a new version of JAX is met here first. One case of each kind:
# roles, recorded results within rounding, the command line, and counted operations.
newest: .venv-newest/installed
	$(NEWEST)/python $(PYTEST) -m "not slow and not gpu" tests/utils tests/golden tests/app/test_cli.py \
		tests/benchmark/test_compute.py tests/benchmark/test_single_runs.py tests/training/test_recompilation.py
	$(NEWEST)/python -m pytest -m smoke tests/app/test_sweep.py tests/training/test_fit.py tests/test_conformance.py

newest-python:
	@echo $(NEWEST_PYTHON)

# The source distribution, and the wheel made from it, in dist.
package: .venv/installed-test
	$(BIN)/python -m build

# What readers see is made from the text, outputs and all.
notebooks: .venv/installed-test
	$(BIN)/jupytext --quiet --to ipynb notebooks/*.py
	$(BIN)/jupyter-execute --inplace notebooks/*.ipynb

# All pages, notebooks and the API, in build/site.
site: .venv/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf .venv .venv-minima .venv-newest .cache

.venv-newest/installed: pyproject.toml
	$(NEWEST_PYTHON) -m venv $(@D)
	$(NEWEST)/python -m pip install --quiet --editable '.[test]'
	touch $@

.venv/created .venv-minima/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(@D)
	touch $@

.venv/installed: .venv/created pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

.venv-minima/installed: .venv-minima/created pyproject.toml minima.txt
	$(MINIMA)/python -m pip install --quiet --constraint minima.txt --editable '.[privacy]' \
		beartype chex hypothesis pytest pytest-xdist
	touch $@
