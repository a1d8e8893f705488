# The front door. Recipes are one line; logic lives in Python. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
RUN := PYTHONPATH=tools $(BIN)/python -m
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo observe test fuzz init check coverage fix generate verify tools chart accuracy constants corpus usefulness answers bench scale chaos mutants run vllm-release site kv-oracle release-dry-run

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "%-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/ready  ## the main job on a local control plane: samples applied, verdicts shown
	$(BIN)/python tools/demo.py

observe: .venv/ready  ## predicted against observed: a real Prometheus, fake vLLMs, the alerts that fire, the dashboard as PNG
	$(BIN)/python tools/observe.py

test: .venv/ready tools  ## the whole test suite, the real control plane included
	$(BIN)/python tools/run_tests.py

fuzz: .venv/ready  ## 250,000 hostile documents, 15,000 reviews, 50,000 model configs, each failure by its seed; all steps of all models
	PYTHONPATH=tests:tools $(BIN)/python -m fuzz $(FUZZ) && KVGATE_EVERY_MODEL=1 $(BIN)/pytest -q -n auto tests/property/test_monotone_capacity.py

init: .venv/ready  ## virtual environment from the pinned requirements, with kvgate in it

.venv/ready: requirements/dev.txt requirements/build.txt pyproject.toml tools/make_venv.py
	$(PYTHON) tools/make_venv.py

check: .venv/ready  ## lint, types, layers and the fast tests; under a minute
	$(BIN)/python tools/run_checks.py

coverage: .venv/ready  ## lines of the pure rooms that no fast test runs; fails below 95 %
	$(BIN)/pytest -q -n auto --dist loadfile -m "not slow" --cov --cov-report=term-missing:skip-covered tests/unit tests/contract tests/manifests tests/parity tests/rendering

fix: .venv/ready  ## format, and mend what the linter can mend
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

generate: .venv/ready  ## rewrite every generated file; those that Helm or a control plane makes only after `make tools`
	$(RUN) generate && $(BIN)/python tools/process_reference.py && $(RUN) pictures.layers && $(RUN) pictures.ledger && $(RUN) pictures.planning && $(BIN)/python tests/chart/golden.py && PYTHONPATH=benchmarks:tests $(BIN)/python -m accuracy >/dev/null && $(RUN) every_door

verify: tools generate  ## generate, then fail if anything committed is out of date
	$(BIN)/python tools/verify_generated.py

tools: .venv/ready  ## build the test control plane and Prometheus (about 20 minutes the first time, then nothing)
	$(RUN) controlplane.debian_prometheus && $(RUN) controlplane.build

chart: .venv/ready tools  ## lint and render the chart, compare with the golden files
	$(BIN)/pytest tests/chart -q

accuracy: .venv/ready  ## docs/accuracy.md: predictions beside logged starts, other planners and vLLM's own code
	PYTHONPATH=benchmarks:tests $(BIN)/python -m accuracy

constants: .venv/ready  ## fitted constants as the logged starts give them; writes those that moved
	PYTHONPATH=benchmarks:tests $(BIN)/python -m accuracy.constants --write && $(BIN)/ruff format -q operator

corpus: .venv/ready  ## other people's manifests beside a careful reader's answers: false errors, engines missed, Unknown, warnings
	PYTHONPATH=benchmarks $(BIN)/python -m corpus

usefulness: .venv/ready  ## docs/usefulness.md: public questions, one command each, beside the answers of their threads
	PYTHONPATH=benchmarks $(BIN)/python -m usefulness

answers: .venv/ready  ## today's answers beside the frozen ones, every difference by its cause; fails on one without a cause
	PYTHONPATH=benchmarks:tests $(BIN)/python -m answers

bench: .venv/ready tools  ## speed and memory, each compared in one run
	$(BIN)/python benchmarks/run_all.py

scale: .venv/ready tools  ## what 1,000 objects cost the controller and the API server, beside the limits in git (SCALE="--objects 5000 --stages cold")
	PYTHONPATH=benchmarks:tools:tests $(BIN)/python -m scale $(SCALE)

chaos: .venv/ready tools  ## what goes wrong around two controllers, and what is left of it: CHAOS="--only etcd", or --write for docs/reliability.md
	PYTHONPATH=benchmarks:tools:tests $(BIN)/python -m chaos $(CHAOS)

mutants: .venv/ready  ## the share of small wrong changes of the budget that the tests notice: make mutants MUTANTS="--sample 100 --seed 1"
	$(RUN) mutants $(MUTANTS)

vllm-release: .venv/ready  ## put a release of vLLM into every table, and say what it changes: make vllm-release VERSION=0.34.0
	$(RUN) vllm_release "$(VERSION)"

kv-oracle: .venv/ready  ## ask a release's own classes for KV caches, on a CPU: make kv-oracle VERSION=0.32.0 (installs it once, 5 GiB)
	$(RUN) kv_oracle "$(VERSION)"

site: .venv/ready  ## the documentation as a site in build/site; fails on a link that leads nowhere
	$(RUN) docs_site

release-dry-run: .venv/ready  ## what a release publishes, in dist/, without publishing it: wheel, sdist, chart, bills of materials, notes, checksums
	$(RUN) release

run: .venv/ready  ## the controller against the current kubectl context
	$(BIN)/kvgate controller
