# `make` lists the targets. They run in .venv, which is created from locks with hashes when it is missing or outdated.

PYTHON ?= python3
JOB ?= examples/lenet/job.yaml
ARGS ?=
BASE_IMAGE ?= python:3.11-slim-bookworm
# cpu or gpu: the lock and the tag of the images.
EXTRA ?= cpu
ifneq ($(filter-out cpu gpu,$(EXTRA)),)
$(error EXTRA is $(EXTRA), expected cpu or gpu)
endif
LOCK_OF_EXTRA = $(if $(filter gpu,$(EXTRA)),requirements-gpu.lock,requirements.lock)
TAG = $(if $(filter gpu,$(EXTRA)),gpu,latest)
KIND_NODE_IMAGE ?= kindest/node:v1.34.0
export KIND_NODE_IMAGE
# Without bytecode, pytest rewrites the assertions of all tests in each process, and each process of a fleet compiles
# psfleet: some seconds each. `make clean` removes it.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.stamp
PACKAGES := psfleet ps_service worker_service
PROTO := $(patsubst %,psfleet/control/%.proto,control run_control driver_control) psfleet/inference/open_inference.proto
PROTOC := $(BIN)/python -m grpc_tools.protoc --proto_path=.
# Five test files at a time, each with its own fork server: fleet tests wait for almost half of their time. Files run in
# the order of tests/conftest.py, not those with most tests first.
IN_PARALLEL := --numprocesses 5 --dist loadfile --no-loadscope-reorder
# What pytest is given: the files that ARGS names, or else all of the target, and the rest of ARGS.
TESTS = $(or $(filter tests/%,$(ARGS)),$(1)) $(filter-out tests/%,$(ARGS))
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

IMAGE = DOCKER_BUILDKIT=1 docker build --file docker/Dockerfile --build-arg BASE_IMAGE=$(BASE_IMAGE) \
	--build-arg LOCK=$(LOCK_OF_EXTRA) --build-arg REVISION=$(or $(shell git rev-parse HEAD 2>/dev/null),unknown)

.DEFAULT_GOAL := help
.PHONY: help venv train up status logs down test test-all test-unit test-fleet test-compose test-kind kind-up kind-runs kind-down check static format lock proto images scan wheel bench bench-peers bench-accuracy bench-variables bench-profile bench-links bench-simulated bench-memory bench-tls bench-input bench-tables bench-replication bench-serve clean

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Creates .venv with the locked dependencies and this tree (editable)

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

status: venv ## Shows every container of every fleet on the Docker engine
	@$(BIN)/psfleet status $(ARGS)

logs: venv ## Prints log lines of JOB's fleet; ARGS go to `psfleet logs`, for example ARGS='chief --follow'
	@$(BIN)/psfleet logs $(JOB) $(ARGS)

down: venv ## Saves, stops and removes JOB's fleet; ARGS go to `psfleet down`
	@$(BIN)/psfleet down $(JOB) $(ARGS)

test: venv ## Runs unit tests and fleet tests (real processes) except the extended ones; ARGS go to pytest
	$(BIN)/pytest $(IN_PARALLEL) -m "not extended" $(call TESTS,tests/fleet tests/unit)

test-all: venv ## Runs all unit tests and fleet tests; ARGS go to pytest
	$(BIN)/pytest $(IN_PARALLEL) $(call TESTS,tests/fleet tests/unit)

test-unit: venv ## Runs unit tests; ARGS go to pytest
	$(BIN)/pytest $(IN_PARALLEL) $(call TESTS,tests/unit)

test-fleet: venv ## Runs fleet tests; ARGS go to pytest
	$(BIN)/pytest $(IN_PARALLEL) $(call TESTS,tests/fleet)

test-compose: venv images ## Tests images and fleets in containers on a Docker engine; ARGS go to pytest
	$(BIN)/pytest $(call TESTS,tests/compose)

test-kind: venv images ## Tests on a Kubernetes cluster made by kind (that of kind-up if it exists); ARGS go to pytest
	$(BIN)/pytest $(call TESTS,tests/kind)

kind-up: venv images ## Creates a kind cluster of three nodes (KIND_NODE_IMAGE) with the images; kubeconfig: .kind/kubeconfig
	PYTHONPATH=tests $(BIN)/python -m support.kind_cluster up

kind-runs: venv images ## Runs ten jobs in that cluster, one after the other; all must exit 0
	PYTHONPATH=tests $(BIN)/python -m support.ten_runs

kind-down: venv ## Removes that cluster
	PYTHONPATH=tests $(BIN)/python -m support.kind_cluster down

check: static test-unit ## Checks format, lint, types, import contracts and generated code, and runs unit tests

static: venv ## Runs `make check` without the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/lint-imports
	@generated=$$(mktemp -d) && trap 'rm -rf "$$generated"' EXIT && \
	$(PROTOC) --python_out="$$generated" --pyi_out="$$generated" --grpc_python_out="$$generated" $(PROTO) && \
	for file in $$(cd "$$generated" && find . -type f); do \
		diff -q "$$generated/$$file" "$$file" || { echo "$$file is older than $(PROTO): run make proto" >&2; exit 1; }; \
	done

format: venv ## Formats the code and applies lint's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: venv ## Upgrades requirements.lock (runtime), requirements-gpu.lock and requirements-dev.lock (runtime and tools)
	$(LOCK) --extra cpu --extra s3 --extra serve --extra sweep --upgrade --output-file requirements.lock
	$(LOCK) --extra gpu --extra s3 --extra serve --extra sweep --upgrade --constraint requirements.lock --output-file requirements-gpu.lock
	$(LOCK) --extra cpu --extra s3 --extra serve --extra sweep --upgrade --group dev --constraint requirements.lock --output-file requirements-dev.lock

proto: venv ## Generates the control plane's code from its .proto
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)

images: ## Builds the images psfleet-ps and psfleet-worker from BASE_IMAGE (NAME@sha256:... pins it); EXTRA=gpu: with CUDA
	@docker info >/dev/null 2>&1 || { echo "make images: cannot connect to a Docker engine; make train works without one" >&2; exit 1; }
	$(IMAGE) --target ps --tag psfleet-ps:$(TAG) .
	$(IMAGE) --target worker --tag psfleet-worker:$(TAG) .

scan: ## Looks for known vulnerabilities in the locks and the images with pip-audit, trivy or grype, whatever is installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" docker/scan.sh

wheel: venv ## Builds dist/psfleet-*.whl
	rm -rf build
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

bench: venv ## Measures steps of psfleet and of its peers, in turn (18 to 40 minutes); ARGS go to the benchmark
	$(BIN)/python -m benchmarks.sync_step $(ARGS)

bench-peers: venv ## Creates the environments of the peers in .bench: PyTorch, and Ray with the TensorFlow of .venv
	@for peer in torch ray; do \
		$(BIN)/python -m venv .bench/$$peer && \
		.bench/$$peer/bin/pip install --quiet --requirement benchmarks/peers/$$peer.txt || exit 1; \
	done
	@site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(BIN)/python -c "$$site" > "$$(.bench/ray/bin/python -c "$$site")/project.pth"

bench-accuracy: venv ## Measures how long LeNet-5 trains on MNIST until it has 98.8 %; ARGS='--mnist FOLDER'
	$(BIN)/python -m benchmarks.time_to_accuracy $(ARGS)

bench-variables: venv ## Measures a step of 161 variables like ResNet-50's against one variable; ARGS go to the benchmark
	$(BIN)/python -m benchmarks.variables $(ARGS)

bench-profile: venv ## Profiles where the CPU time of a step goes (as root, Linux, with perf); ARGS go to the benchmark
	$(BIN)/python -m benchmarks.profile $(ARGS)

bench-links: venv ## Measures steps on links of 1 Gbit/s and 200 Mbit/s (as root, Linux); ARGS go to the benchmark
	$(BIN)/python -m benchmarks.links $(ARGS)

bench-simulated: venv ## Measures steps of 2 to 64 workers that wait, and what a spare saves; ARGS go to the benchmark
	$(BIN)/python -m benchmarks.simulated_step $(ARGS)

bench-memory: venv ## Measures the memory of a ps and its growth over 10,000 steps; ARGS go to the benchmark
	$(BIN)/python -m benchmarks.memory $(ARGS)

bench-tls: venv images ## Measures steps in containers, plain and with TLS; ARGS go to the benchmark
	$(BIN)/python -m benchmarks.tls_step $(ARGS)

bench-input: venv ## Measures steps on data in memory, read by workers, and read by loaders; ARGS go to the benchmark
	$(BIN)/python -m benchmarks.input $(ARGS)

bench-tables: venv ## Measures steps with embedding tables, a dense layer, and ParameterServerStrategy; needs root
	$(BIN)/python -m benchmarks.tables $(ARGS)

bench-replication: venv ## Measures between-graph against in-graph replication; ARGS go to the benchmark
	$(BIN)/python -m benchmarks.replication $(ARGS)

bench-serve: venv ## Measures a service against TensorFlow's own predictions; ARGS go to the benchmark
	$(BIN)/python -m benchmarks.serving $(ARGS)

clean: ## Removes .venv, .bench, builds and caches; keeps results in runs/
	rm -rf .venv .bench build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
