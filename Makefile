PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?= data
PACKAGES := shared services/gateway services/thinker services/talker services/codec kernels
SOURCES := $(PACKAGES) tests tools benchmarks
INPUTS := constraints.txt requirements-demo.txt requirements-dev.txt tools/setup.sh $(PACKAGES:%=%/pyproject.toml)
# One thread each: the services, the tests' engines and pytest share the cores (measured: see omnistage.config.threads).
RUN := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev up demo down test test-unit test-e2e chaos-short chaos-ci chaos bench lint fmt types arch audit check docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready-runtime ## create .venv with all that running and the demo need

setup-dev: $(VENV)/.ready-dev ## the same, and what tests and checks need

$(VENV)/.ready-runtime: $(INPUTS)
	@tools/setup.sh "$(PYTHON)" "$(VENV)" runtime
	@touch $@

$(VENV)/.ready-dev: $(INPUTS)
	@tools/setup.sh "$(PYTHON)" "$(VENV)" dev
	@touch $@ $(VENV)/.ready-runtime

up: setup ## start the system on port 8000 (OMNISTAGE_PORT) and keep it running until Ctrl-C
	@exec $(BIN)/omnistage up --data "$(DATA)"

down: setup ## stop the running system
	@$(BIN)/omnistage down --data "$(DATA)"

demo: setup ## start on a free port, say a sentence, get a spoken answer, write hello.wav and answer.wav, stop
	@exec $(BIN)/python -m omnistage.launcher.demo

test: setup-dev ## run all tests
	$(RUN) $(BIN)/python -m pytest

test-unit: setup-dev ## run the tests that do not start the whole system
	$(RUN) $(BIN)/python -m pytest -m "not e2e and not load"

test-e2e: setup-dev ## run the tests of the whole system
	$(RUN) $(BIN)/python -m pytest -m "e2e or load"

chaos-short: setup-dev ## break a running system for a quarter of an hour
	$(RUN) $(BIN)/python -m pytest -m "chaos and not chaos_long and not load_long"

chaos-ci: setup-dev ## the part of chaos-short that CI runs: kills, poison, aborts, dead gateways, load with kills
	$(RUN) $(BIN)/python -m pytest -m "chaos and not chaos_long and not load_long" --durations=12 \
	  tests/chaos/test_kills.py tests/chaos/test_poison.py tests/chaos/test_aborts.py \
	  tests/load/test_gateway_death.py tests/load/test_soak.py

chaos: setup-dev ## break a running system for an hour; results go to benchmarks/results/
	$(RUN) $(BIN)/python -m pytest -s -m chaos_long tests/chaos
	$(RUN) $(BIN)/python -m pytest -s -m "chaos and load_long" tests/load

bench: setup-dev ## run the benchmarks; results go to benchmarks/results/
	@set -e; for file in benchmarks/*.py; do echo "$$file"; $(RUN) $(BIN)/python "$$file"; done

lint: setup-dev ## look for faults and unformatted code
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

fmt: setup-dev ## format the code and repair what can be repaired
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

types: setup-dev ## check types, strictly
	$(BIN)/mypy $(PACKAGES:%=%/src) $(PACKAGES:%=%/tests) tests tools benchmarks

arch: setup-dev ## check which module may import which
	$(BIN)/lint-imports

audit: setup-dev ## look for known vulnerabilities in the dependencies (needs network)
	@tools/audit.sh $(BIN)

check: lint types arch ## all checks that are no tests

docs: setup-dev ## render the generated parts of the docs
	$(BIN)/python tools/render_docs.py

clean: ## remove the environment, caches and results of the demo; the data folder stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis hello.wav answer.wav
	find $(PACKAGES) tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
