# Everything works bare on a fresh machine: `make demo`, `make test`.
#
# What can be chosen, e.g. `make install PYTHON=python3.12 TORCH_SPEC=torch==2.12.0`:
#   PYTHON           interpreter of the environment, 3.11 or newer
#   VENV             where the environment lies
#   EXTRAS           optional parts of posttrain to install
#   TORCH_SPEC       the torch to install where none can be imported
#   TORCH_CPU_INDEX  where CPU builds come from on machines without an NVIDIA driver
#   WORKERS          processes that run the tests

PYTHON ?=
VENV ?= .venv
EXTRAS ?= train,sweep,dev
TORCH_SPEC ?= torch==2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
WORKERS ?= 2
DEMO_HOME ?= $(CURDIR)/.demo
DEMO_BUDGET ?= 240

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHON VENV EXTRAS TORCH_SPEC TORCH_CPU_INDEX
# torch's threads must not spin while another process wants the core
export OMP_WAIT_POLICY = PASSIVE

.PHONY: help install system demo test check fix clean

help:
	@echo "make install   environment in $(VENV) with posttrain[$(EXTRAS)]"
	@echo "make demo      post-train a small model on this machine, some minutes"
	@echo "make test      the tests"
	@echo "make check     formatting, lint, types, import rules"
	@echo "make fix       repair what can be repaired by a tool"
	@echo "make clean     remove caches, build files and the demo's lab home"

install: $(STAMP)

$(STAMP): pyproject.toml tools/install.sh
	@bash tools/install.sh
	@touch $@

system:
	@bash tools/system-packages.sh

demo: system install
	@POSTTRAIN_HOME="$(DEMO_HOME)" $(BIN)/posttrain run --agent recipe --task boolean --model smollm2-135m \
	    --timeout $(DEMO_BUDGET)

test: system install
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -v -n $(WORKERS) $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .demo build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
