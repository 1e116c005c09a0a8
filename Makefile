# `make` lists the targets. Everything runs in .venv, which is made from the hashed locks when it is missing or old.

PYTHON ?= python3
JOB ?= examples/lenet/job.yaml
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.stamp
PACKAGES := psfleet ps_service worker_service
PROTO := psfleet/control/control.proto
PROTOC := $(BIN)/python -m grpc_tools.protoc --proto_path=.
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --no-config --universal --python-version 3.11 --extra cpu \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

.DEFAULT_GOAL := help
.PHONY: help venv train test test-unit test-fleet check static format lock proto bench clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## .venv with the locked dependencies and this tree

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 13) or sys.exit(f"$(PYTHON) is Python %d.%d, expected 3.11 or 3.12; name another with PYTHON=..." % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

train: venv ## Trains JOB (LeNet-5 on handwritten digits) on local processes; ARGS go to `psfleet train`
	$(BIN)/psfleet train $(JOB) $(ARGS)

test: venv ## Unit tests, and fleet tests with real processes; ARGS go to pytest
	$(BIN)/pytest tests/unit tests/fleet $(ARGS)

test-unit: venv ## Unit tests
	$(BIN)/pytest tests/unit $(ARGS)

test-fleet: venv ## Fleet tests
	$(BIN)/pytest tests/fleet $(ARGS)

check: static test-unit ## Format, lint, types, import contracts, generated code, and unit tests (sizes are among them)

static: venv ## The part of `make check` that runs no test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/lint-imports
	@generated=$$(mktemp -d) && trap 'rm -rf "$$generated"' EXIT && \
	$(PROTOC) --python_out="$$generated" --pyi_out="$$generated" --grpc_python_out="$$generated" $(PROTO) && \
	for file in $$(cd "$$generated" && find . -type f); do \
		diff -q "$$generated/$$file" "$$file" || { echo "$$file is older than $(PROTO): run make proto" >&2; exit 1; }; \
	done

format: venv ## Formats the code and mends what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: venv ## Renews requirements.lock (what runs) and requirements-dev.lock (that, and the tools)
	$(LOCK) --upgrade --output-file requirements.lock
	$(LOCK) --upgrade --group dev --constraint requirements.lock --output-file requirements-dev.lock

proto: venv ## Generates the control plane's code from its .proto
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)

bench: venv ## Times the sync step against the stock recipe and compute alone
	$(BIN)/python -m benchmarks.sync_step $(ARGS)

clean: ## Removes .venv, builds and caches; results in runs/ stay
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
