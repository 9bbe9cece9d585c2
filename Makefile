# `make demo` and `make test` do everything on a fresh clone; the rest is for contributors.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test check studio-test docs lint format environment clean

help:
	@echo "make demo    build .venv, solve Darcy flow, train two small neural operators, write a report"
	@echo "make test    build .venv, check style, types and layers, run the whole test suite"
	@echo "make check   the same without the slow tests, in three minutes on two cores"
	@echo "make studio-test  install playwright, test the studio in a browser (needs chromium) and the service"
	@echo "make docs    build the documentation into site/"
	@echo "make lint    ruff, mypy and import-linter only"
	@echo "make format  let ruff rewrite what it can"
	@echo "make clean   remove .venv and caches"

# The stamp makes the second call instant; a changed dependency list rebuilds.
$(READY): pyproject.toml constraints.txt
	@echo "==> building $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

environment: $(READY)

demo: $(READY)
	@$(BIN)/linearno demo

test: lint
	@echo "==> tests"
	@$(BIN)/python -m pytest -n auto --dist loadfile

check: lint
	@echo "==> fast tests"
	@$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow"

studio-test: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	@test -x /usr/bin/chromium || echo "tests in a browser are skipped: install the package chromium"
	@$(BIN)/python -m pytest tests/studio tests/service

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

lint: $(READY)
	@echo "==> style, types, layers"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
