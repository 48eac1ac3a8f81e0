# make demo   install into .venv and watch gradients vanish, then not vanish
# make test   lint, types and tests
# make test-gpu   the tests that need a CUDA device
# make sanitize   the C of every cell under AddressSanitizer, some ten minutes
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-gpu sanitize lint types install clean

demo: .venv/installed
	$(BIN)/evenflow demo

# One process a core, one thread each: more would get in each other's way.
test: .venv/installed lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test-gpu: .venv/installed
	$(BIN)/python -m pytest tests/gpu -rs

sanitize: .venv/installed
	$(BIN)/python tools/sanitize_c.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

install: .venv/installed

# torch goes in first and pinned: anything else that depends on it would fetch whichever build is newest.
# For the same reason the package itself is built without isolation.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
