# make bench    benchmark this machine and compare with its baseline (PROFILE=standard or full: more)
# make test     run the tests              make test-all   these, all AMD targets, broken files …
# make coverage the same as test-all, with line coverage
# make check    lint, types, formatting    make clean      remove what make made, not what it measured
# make docs                the documentation as pages that work offline, in build/docs
# make dashboard           results and baselines as pages that work offline, in .asv/html
# make test-sanitizer      every GPU kernel on the stand-in under AddressSanitizer, many minutes
# make test-hip-versions   the HIP runtime's tests with hip-python 10.0, 7.2, 7.1, 7.0 and 6.4
PYTHON ?= python3
BIN := .venv/bin
PYTEST := -q -n 3  # on two cores: a fifth of the time tests wait for programs
CPP := $(wildcard rocmforge/cpu/*.cpp rocmforge/cpu/*.h)
KERNELS := $(wildcard kernels/*.hip kernels/*.h tests/standin/*.cpp tests/standin/*.h)

.PHONY: bench help dashboard docs test test-all coverage check clean test-sanitizer test-hip-versions

bench: .venv/ready-bench
	$(BIN)/rocmforge bench run $(if $(PROFILE),--profile $(PROFILE))

help:
	@sed -n 's/^# make/make/p' $(firstword $(MAKEFILE_LIST))

dashboard: .venv/ready-bench
	$(BIN)/rocmforge bench dashboard

docs: .venv/ready-docs
	$(BIN)/sphinx-build -q -E -a -W --keep-going -c docs/site -d build/doctrees . build/docs
	@echo 'rocmforge: the documentation is build/docs/index.html'

# Programs that tests start read what compileall wrote, also where Python is told to write nothing.
test: .venv/ready-test
	$(BIN)/python -m compileall -q -j 2 rocmforge benchmarks studies tools
	$(BIN)/python -m pytest $(PYTEST) -m "not slow and not sanitizer"

test-all: test
	$(BIN)/python -m pytest $(PYTEST) -m "slow and not sanitizer" tests/gpu
	$(BIN)/python -m pytest $(PYTEST) -m "slow and not sanitizer" tests/profiling
	$(BIN)/python -m pytest -q -m "slow and not sanitizer" --ignore tests/gpu --ignore tests/profiling # these measure

coverage: .venv/ready-test
	$(BIN)/python -m pytest $(PYTEST) -m "not sanitizer" --cov=rocmforge --cov-report=term --cov-fail-under=90

test-sanitizer: .venv/ready-test
	$(BIN)/python -m pytest -q -m sanitizer

test-hip-versions: .venv/ready-test
	tools/test_hip_versions.sh

check: .venv/ready-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP) $(KERNELS)
	$(BIN)/python tools/render_tables.py --check
	$(BIN)/python -m pytest -q tests/test_import_direction.py tests/test_architecture_tree.py
	$(BIN)/asv check -E existing:$(BIN)/python
	$(MAKE) --no-print-directory docs

.venv/ready: pyproject.toml CMakeLists.txt tools/setup_env.sh kernels/blocks.h $(CPP)
	@tools/setup_env.sh $(PYTHON)

# What bench, docs, test and check need besides, which are extras of pyproject.toml.
.venv/ready-%: pyproject.toml | .venv/ready
	@tools/setup_env.sh $(PYTHON) $*

clean:
	rm -rf .venv build .asv/env .asv/html .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
