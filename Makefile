# make demo       install into .venv and watch a gradient vanish, then not vanish (three minutes)
# make test       lint, types, and the tests that are not marked slow: what CI runs
# make test-all   make test with the slow tests: long trainings, the built wheel in fresh environments
# make test-gpu   the tests that need a CUDA device
# make docs       the site in build/site: open build/site/index.html
# make sanitize   the generated C of every cell under gcc's sanitizers of memory, behaviour and threads (twenty minutes)
# make wheel      the source distribution and the wheel in dist/, checked by twine; the wheel has the same bytes for the same commit
# make locked     install into .venv the packages of .ci/requirements.txt, whose hashes are compared; CI does so
# make lock       write .ci/requirements.txt anew from pyproject.toml and constraints.txt (uv)
# make audit      known vulnerabilities of these packages and of torch (pip-audit)
# make harden     attacks on runs, files and inputs: MINUTES=30 SEED=0
PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 30
SEED ?= 0
# One process per core with one thread each: more threads slow each other down.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

.PHONY: demo test test-all test-gpu docs sanitize harden wheel locked lock audit lint types install clean

demo: .venv/installed
	$(BIN)/evenflow demo

test: .venv/installed lint types
	$(PYTEST) -m "not slow"

test-all: .venv/installed lint types
	$(PYTEST)

test-gpu: .venv/installed
	$(BIN)/python -m pytest tests/gpu -rs

# The first variable silences a message of mkdocs-material about another program; torch is faster here with one thread.
docs: .venv/docs-installed
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict

sanitize: .venv/installed
	$(BIN)/python tools/sanitize_c.py

harden: .venv/installed
	$(BIN)/python tools/harden --minutes $(MINUTES) --seed $(SEED)

# Files get the rights of a new file, and the time of the commit.
wheel: .venv/installed
	rm -rf dist
	umask 022; SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

# torch is in none of the hashes: a machine needs the build for its CPU or its GPU.
locked:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r .ci/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch .venv/installed

# What torch needs is named here, since torch is left out.
lock: .venv/installed
	$(BIN)/python -m pip install --quiet uv
	mkdir -p build; echo torch > build/left-out
	(echo "# The test environment with the SHA-256 of every file; torch comes before, in the build that the machine needs."; \
	echo "# Written by make lock."; \
	printf '%s\n' setuptools wheel filelock fsspec jinja2 networkx sympy typing-extensions | $(BIN)/uv pip compile --quiet \
	--no-header --generate-hashes --no-annotate --universal --python-version 3.11 --excludes build/left-out --extra test \
	-c constraints.txt pyproject.toml -) > build/requirements.txt
	mv build/requirements.txt .ci/requirements.txt

# With --strict a package that the database does not know, or a database that cannot be reached, is a failure too.
audit: .venv/installed
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r .ci/requirements.txt
	mkdir -p build; grep '^torch==' constraints.txt > build/torch.txt
	$(BIN)/pip-audit --strict --disable-pip --no-deps -r build/torch.txt

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
