# make bench    run the benchmark suite's main job on this machine's best device (FULL=1: all of it)
# make test     run the tests              make coverage   the same, with line coverage
# make check    lint, types, formatting    make clean      remove what make made, not what it measured
PYTHON ?= python3
BIN := .venv/bin
CPP := $(wildcard rocmforge/cpu/*.cpp rocmforge/cpu/*.h)

.PHONY: bench test coverage check clean

bench: .venv/ready
	$(BIN)/python tools/bench.py $(if $(FULL),--full)

test: .venv/ready
	$(BIN)/python -m pytest -q

coverage: .venv/ready
	$(BIN)/python -m pytest -q --cov=rocmforge --cov-report=term --cov-fail-under=90

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/python tools/render_tables.py --check
	$(BIN)/python -m pytest -q tests/test_import_direction.py tests/test_readme_tree.py
	$(BIN)/asv check -E existing:$(BIN)/python

.venv/ready: pyproject.toml CMakeLists.txt tools/setup_env.sh $(CPP)
	@tools/setup_env.sh $(PYTHON)

clean:
	rm -rf .venv build .asv/env .asv/html .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
