# `make demo`, `make test` and `make docs` install what they need into .venv; a second call installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks examples
# The versions that the tests passed with, where this Python version has such a file.
CONSTRAINTS := $(wildcard constraints/$(shell $(PYTHON) -c 'import sys; print("py%d%d" % sys.version_info[:2])').txt)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS))

.PHONY: demo test test-slow test-browser test-lowest check format docs clean

demo: $(VENV)/.demo
	$(BIN)/fidec demo

test: check
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# Needs chromium from the system's packages, or the path of a browser in FIDEC_BROWSER.
test-browser: $(VENV)/.dev
	$(INSTALL) -e '.[browser]'
	$(BIN)/python -m pytest -m browser

# The lower bounds of pyproject.toml, in a venv of their own. Each bound must be a version that exists.
test-lowest: LOWEST := $(VENV)-lowest
test-lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) constraints/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/lowest.txt \
	  -e '.[ogbench,d4rl,minari,video,serve]' pytest pytest-timeout hypothesis beartype
	$(LOWEST)/bin/python -m pytest tests/core tests/data tests/store tests/serve tests/train/test_loop.py \
	  tests/make/test_make_dataset.py

check: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[ogbench,video]'
	touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-lowest .pytest_cache .ruff_cache build dist site
