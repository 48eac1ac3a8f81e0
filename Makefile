# make demo       install into .venv and watch a gradient vanish, then not vanish (three minutes)
# make test       lint, types, and the tests that are not marked slow: what CI runs
# make test-all   make test with the slow tests: long trainings, the built wheel in fresh environments
# make test-gpu   the tests that need a CUDA device
# make docs       the site in build/site: open build/site/index.html
# make sanitize   the generated C of every cell under gcc's sanitizers of memory, behaviour and threads (twenty minutes)
# make harden     attacks on runs, files and inputs: MINUTES=30 SEED=0
PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 30
SEED ?= 0
# One process per core with one thread each: more threads slow each other down.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

.PHONY: demo test test-all test-gpu docs sanitize harden lint types install clean

demo: .venv/installed
	$(BIN)/evenflow demo

test: .venv/installed lint types
	$(PYTEST) -m "not slow"

test-all: .venv/installed lint types
	$(PYTEST)

test-gpu: .venv/installed
	$(BIN)/python -m pytest tests/gpu -rs

# The variable silences a message of mkdocs-material about another program.
docs: .venv/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

sanitize: .venv/installed
	$(BIN)/python tools/sanitize_c.py

harden: .venv/installed
	$(BIN)/python tools/harden --minutes $(MINUTES) --seed $(SEED)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

install: .venv/installed

# torch is installed first and pinned: otherwise another package would pull in the newest build of it.
# The package is built without isolation, so that the pinned setuptools builds it.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[test]'
	touch $@

.venv/docs-installed: .venv/installed
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
