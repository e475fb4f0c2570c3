# The commands of the README. Everything lives in .venv; stamps make repeated runs quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# CPU wheels of torch: those on PyPI bring gigabytes of CUDA along.
TORCH_WHEELS ?= https://download.pytorch.org/whl/cpu/torch/

.DEFAULT_GOAL := help
.PHONY: help demo test emulate lint bench-smoke paper paper-smoke docs clean
.DELETE_ON_ERROR:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/installed ## a BERT layer over 24 sequence lengths against NumPy: table and plot
	$(BIN)/vortex demo

# Several processes test at once, and NumPy's threads wait for work by spinning: with them `emulate` takes twice as long.
test emulate: export OPENBLAS_NUM_THREADS := 1

test: $(VENV)/installed ## all tests that this machine can run
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

emulate: $(VENV)/installed ## kernels of other machines: of GPUs thread by thread on this CPU, of AVX-512 by AVX2
	$(BIN)/python -m pytest -m emulate

lint: $(VENV)/installed ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-smoke: $(VENV)/eval-installed ## a few cases of every suite against every system, in minutes
	$(BIN)/python -m eval.bench --smoke

paper: $(VENV)/eval-installed ## the paper's tables and figures on this machine: hours, resumable (MINUTES=n for a sample, THREADS=n)
	$(BIN)/python -m eval.paper all --docs $(if $(MINUTES),--minutes $(MINUTES)) $(if $(THREADS),--threads $(THREADS))

paper-smoke: $(VENV)/eval-installed ## the same with a few small cases of each, in ten minutes at most
	$(BIN)/python -m eval.paper all --smoke --minutes 6

docs: $(VENV)/installed ## the pages that are generated from the code
	$(BIN)/python docs/generate_hardware_spec.py

clean: ## remove the environment, caches and build folders
	rm -rf $(VENV) build dist vortex.egg-info .mypy_cache .pytest_cache .ruff_cache

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "$$($(PYTHON) --version) is too old: Python 3.11 or later is needed (make PYTHON=python3.12 ...)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=24' < /dev/null
	touch $@

# Editable: a changed module needs no new installation, a changed pyproject.toml does. (setuptools warns of that mode.)
$(VENV)/installed: $(VENV)/created pyproject.toml
	@echo "installing vortex and what it needs to compile and test into $(VENV) (a minute or two)"
	PYTHONWARNINGS=ignore $(PIP) install --quiet --editable '.[compile,cuda,dev]' < /dev/null
	touch $@

$(VENV)/eval-installed: $(VENV)/installed eval/requirements.txt
	@echo "installing the libraries to compare with into $(VENV) (some minutes)"
	$(PIP) install --quiet --no-deps --find-links $(TORCH_WHEELS) --constraint eval/requirements.txt torch < /dev/null
	$(PIP) install --quiet --requirement eval/requirements.txt < /dev/null
	touch $@
