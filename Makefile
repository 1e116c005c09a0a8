# `make` lists the targets. Everything runs in .venv, which is made from the hashed locks when it is missing or old.

PYTHON ?= python3
JOB ?= examples/lenet/job.yaml
ARGS ?=
BASE_IMAGE ?= python:3.11-slim-bookworm
KIND_NODE_IMAGE ?= kindest/node:v1.34.0
export KIND_NODE_IMAGE

BIN := .venv/bin
STAMP := .venv/.stamp
PACKAGES := psfleet ps_service worker_service
PROTO := psfleet/control/control.proto
PROTOC := $(BIN)/python -m grpc_tools.protoc --proto_path=.
# Test files, one in each of two processes, each with its own fork server: fleets spend much of their time waiting.
TWO_AT_ONCE := --numprocesses 2 --dist loadfile
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --no-config --universal --python-version 3.11 --extra cpu \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

IMAGE = DOCKER_BUILDKIT=1 docker build --file docker/Dockerfile --build-arg BASE_IMAGE=$(BASE_IMAGE) \
	--build-arg REVISION=$(or $(shell git rev-parse HEAD 2>/dev/null),unknown)

.DEFAULT_GOAL := help
.PHONY: help venv train up status logs down test test-unit test-fleet test-compose test-kind kind-up kind-runs kind-down check static format lock proto images bench clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## .venv with the locked dependencies and this tree

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 13) or sys.exit(f"$(PYTHON) is Python %d.%d, expected 3.11 or 3.12; name another with PYTHON=..." % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

train: venv ## Trains JOB (LeNet-5 on handwritten digits) on local processes; ARGS go to `psfleet train`
	$(BIN)/psfleet train $(JOB) $(ARGS)

up: venv images ## Trains JOB in containers on this machine's Docker engine; ARGS go to `psfleet up`
	@$(BIN)/psfleet up $(JOB) $(ARGS)

status: venv ## Every container of every fleet on the Docker engine
	@$(BIN)/psfleet status $(ARGS)

logs: venv ## Log lines of JOB's fleet; ARGS go to `psfleet logs`, such as ARGS='chief --follow'
	@$(BIN)/psfleet logs $(JOB) $(ARGS)

down: venv ## Saves and ends JOB's fleet; ARGS go to `psfleet down`
	@$(BIN)/psfleet down $(JOB) $(ARGS)

test: venv ## Unit tests, and fleet tests with real processes; ARGS go to pytest
	$(BIN)/pytest $(TWO_AT_ONCE) tests/unit tests/fleet $(ARGS)

test-unit: venv ## Unit tests
	$(BIN)/pytest $(TWO_AT_ONCE) tests/unit $(ARGS)

test-fleet: venv ## Fleet tests
	$(BIN)/pytest $(TWO_AT_ONCE) tests/fleet $(ARGS)

test-compose: venv images ## Tests of the images and of fleets in containers, on a Docker engine; ARGS go to pytest
	$(BIN)/pytest tests/compose $(ARGS)

test-kind: venv images ## Tests on a Kubernetes cluster that kind makes (that of kind-up, if it is up); ARGS go to pytest
	$(BIN)/pytest tests/kind $(ARGS)

kind-up: venv images ## A cluster of three nodes from KIND_NODE_IMAGE, with the images; its kubeconfig is .kind/kubeconfig
	PYTHONPATH=tests $(BIN)/python -m support.kind_cluster up

kind-runs: venv images ## Ten runs in that cluster, one after the other: all of them have to end well
	PYTHONPATH=tests $(BIN)/python -m support.ten_runs

kind-down: venv ## Removes that cluster
	PYTHONPATH=tests $(BIN)/python -m support.kind_cluster down

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

images: ## Builds the images psfleet-ps and psfleet-worker, from BASE_IMAGE
	@docker info >/dev/null 2>&1 || { echo "make images needs a Docker engine that answers; make train needs none" >&2; exit 1; }
	$(IMAGE) --target ps --tag psfleet-ps:latest .
	$(IMAGE) --target worker --tag psfleet-worker:latest .

bench: venv ## Times the sync step against the stock recipe and compute alone
	$(BIN)/python -m benchmarks.sync_step $(ARGS)

clean: ## Removes .venv, builds and caches; results in runs/ stay
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
