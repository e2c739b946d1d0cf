# Everything runs from virtual environments that this file makes; the machine needs Python 3.11 and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := pip install --quiet --disable-pip-version-check --no-build-isolation
FETCH := .venv-parity/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d build/parity
RELEASE := tests/releases/0.1.0
PROTOC := .venv-proto/bin/python -m grpc_tools.protoc -I proto
# The folders count too, so that a deleted file is noticed.
SOURCES := $(shell find proto/logitd sampling service client -name __pycache__ -prune -o \
	\( -type d -o -name '*.py' -o -name '*.pyi' -o -name '*.proto' -o -name '*.txt' \) -print)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup lint test parity parity-full compat interop deploy-check faults demo demo-llm bench bench-forms bench-plot gpu-check \
	proto proto-check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile

setup: .venv/package ## Make .venv: the pinned dependencies and the package, installed as a user would have it

lint: setup proto-check ## Check style, formatting, types, the contract and its stubs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy -p logitd.sampling -p logitd.service -p logitd.client
	$(BIN)/buf lint proto
	$(BIN)/buf breaking proto --against $(RELEASE)/proto

test: setup ## Run the tests
	$(BIN)/pytest

parity: .venv-parity/package ## Compare with Transformers, SGLang, what vLLM gave, and a real model; fetches them
	$(FETCH) 'sglang==0.5.23'
	.venv-parity/bin/pytest tests/parity

parity-full: .venv-parity/package ## The same with vLLM's own code, and every beam of 8 prompts; writes build/parity.json
	$(FETCH) 'sglang==0.5.23' 'vllm>=0.33'
	.venv-parity/bin/pytest tests/parity
	.venv-parity/bin/python tests/parity/beam_table.py

compat: setup .venv-lowest/package .venv-release/ready ## The client on the oldest dependencies; the last release's client
	LOGITD_SERVER_PYTHON=$(CURDIR)/$(BIN)/python .venv-lowest/bin/pytest tests/client
	LOGITD_RELEASE_PYTHON=$(CURDIR)/.venv-release/bin/python $(BIN)/pytest tests/compat

interop: setup ## Build the C++, Go and Node samples and hold them against a server; installs what they need
	bash tests/interop/run.sh $(BIN)/python

deploy-check: .venv-deploy/package build/interop/SmolLM2-135M-Instruct.Q4_1.gguf ## Check manifests and container files; as root
	LOGITD_DEPLOY_CHECK=1 .venv-deploy/bin/pytest tests/deploy

build/interop/SmolLM2-135M-Instruct.Q4_1.gguf: | setup
	bash tests/interop/fetch_model.sh $(BIN)/python $@

faults: setup ## The long form of the fault tests: kills, cuts, fuzzing, a soak; half an hour
	LOGITD_FAULTS=long $(BIN)/pytest tests/faults

demo: setup ## Start a server, decode with a small embedded model and show what each option does
	$(BIN)/python -m logitd.client.demo

demo-llm: .venv-parity/package ## The same with a real model, SmolLM2-135M
	.venv-parity/bin/python -m logitd.client.demo --llm

bench-forms: .venv-parity/package ## Print what a step costs in each form, beside a real model's own step
	.venv-parity/bin/python tests/bench/forms.py

bench: .venv-parity/package ## Measure a step against dense and bincount ways and Transformers; writes build/bench.json
	.venv-parity/bin/python tests/bench/run.py

bench-plot: setup ## Draw build/bench.json as docs/bench.png
	$(BIN)/python tests/bench/plot.py

gpu-check: ## Run the tests and the bench on an accelerator, with the Python that is there
	bash tests/gpu_check.sh

proto: .venv-proto/ready ## Generate the stubs in proto/logitd/v1 again
	rm -f proto/logitd/v1/*_pb2*.py*
	$(PROTOC) --python_out=proto --pyi_out=proto --grpc_python_out=proto proto/logitd/v1/*.proto

proto-check: .venv-proto/ready ## Fail if the stubs differ from what the contract generates
	rm -rf build/stubs && mkdir -p build/stubs
	$(PROTOC) --python_out=build/stubs --pyi_out=build/stubs --grpc_python_out=build/stubs proto/logitd/v1/*.proto
	diff -r -x '*.proto' -x __init__.py -x py.typed -x __pycache__ proto/logitd/v1 build/stubs/logitd/v1

clean: ## Remove all that this file makes
	rm -rf .venv .venv-lowest .venv-parity .venv-proto .venv-deploy .venv-release build logitd.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis

# $(call make-venv,what to install): an environment from scratch in the target's folder. setuptools goes first and
# builds the package without isolation, so that the build is pinned as well.
define make-venv
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/$(PIP) -c $(CONSTRAINTS) setuptools
	$(@D)/bin/$(PIP) -c $(CONSTRAINTS) $(1)
	touch $@
endef

CONSTRAINTS := constraints.txt
.venv-lowest/ready: CONSTRAINTS := tests/constraints-lowest.txt

.venv/ready: pyproject.toml constraints.txt
	$(call make-venv,'.[dev]')

.venv-parity/ready: pyproject.toml constraints.txt
	$(call make-venv,'.[parity]')

.venv-deploy/ready: pyproject.toml constraints.txt
	$(call make-venv,'.[deploy]')

.venv-lowest/ready: pyproject.toml tests/constraints-lowest.txt
	$(call make-venv,. pytest pytest-timeout)

.venv-release/ready: constraints.txt $(wildcard $(RELEASE)/*.whl)
	$(call make-venv,$(wildcard $(RELEASE)/*.whl))

.venv-proto/ready: proto/requirements.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/$(PIP) -r $<
	touch $@

# The package alone again, seconds after a source changed. Old build output would bring deleted modules back. The stamp
# comes first, so that a source saved meanwhile is newer; make removes it if a later line fails.
%/package: %/ready $(SOURCES)
	touch $@
	rm -rf build/lib build/bdist.*
	$*/bin/$(PIP) --no-deps --force-reinstall .
