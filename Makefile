# Every target sets up what it needs by itself, in .venv; all it asks for is Python 3.11 or newer.
#   make test ARGS="-n 0 -k rotary"       extra arguments for pytest
#   make demo PYTHON=/path/to/python3.12  another Python (when .venv is made)

PYTHON ?= python3
export PYTHON
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format clean

help:  ## show this list
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST)

demo:  ## train, evaluate and look inside a small model on this machine
	@scripts/setup.sh demo
	@.venv/bin/python -m vitrail demo $(ARGS)

# pytest runs two workers; more threads than one in each would only compete for the cores.
test: export OMP_NUM_THREADS ?= 1
test:  ## run the tests (ARGS="..." goes to pytest)
	@scripts/setup.sh test
	@.venv/bin/python -m pytest $(ARGS)

lint:  ## check style, formatting and types
	@scripts/setup.sh dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format:  ## fix what can be fixed, and format
	@scripts/setup.sh dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:  ## remove .venv, caches and build outputs (never runs/)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
