# Drainmark. `make` alone lists the targets. Needed: Python 3.11 or later, Java 17 or later; all else comes with `setup`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV := .venv
BIN := $(VENV)/bin
STAMP := .setup-stamp
CLASSES := $(VENV)/spark-classes.jsa
FLINK_VENV := .bench-venv-flink
STREAMZ := .bench-streamz
LIMIT := .bench-limit
RELEASE := build/release-venv
EXECUTORS := dagster-docker==0.29.27 dagster-k8s==0.29.27 docker-image-py==0.2.0 kubernetes==36.0.3 google-auth==2.63.0 \
  durationpy==0.11 pyasn1==0.6.5 pyasn1-modules==0.4.2 requests-oauthlib==2.0.0 oauthlib==4.0.1
INPUT ?=
ARGS ?=
WORKERS ?= 3
DURATIONS := build/test-durations.txt
FAST := $(addprefix tests/unit/,protocol regions channels counting state runtime)

.PHONY: help setup demo chaos dev test test-fast test-recovery test-cluster test-postgres test-kafka test-s3 azurite deploy-check executors-check check bench bench-flink-setup bench-streamz-setup bench-limit-setup bench-report docs screenshots simulate dist sbom clean requirements

help: ## this list
	@echo "make TARGET"; echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | \
	  while IFS=$$'\t' read -r name text; do printf '  %-17s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## install everything into .venv, once; every target below does it by itself

$(STAMP): requirements.lock pyproject.toml
	@if ! { [ -n "$${JAVA_HOME:-}" ] && [ -x "$${JAVA_HOME:-}/bin/java" ]; } && ! command -v java >/dev/null; then \
	  echo "Drainmark needs Java 17, and there is none: install it (Debian: apt install openjdk-17-jre-headless)." >&2; exit 1; fi
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "Drainmark needs Python 3.11 or later, and $(PYTHON) is not: install it, or name it: make setup PYTHON=..." >&2; exit 1; fi
	@[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV) || { \
	  echo "The virtual environment could not be made: install Python's venv (Debian: apt install python3.11-venv)." >&2; exit 1; }
	@echo "Installing Python packages into $(VENV) (a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@echo "Fetching the jars of delta-spark (20 seconds, once a machine) ..."
	@$(BIN)/python -m drainmark.orchestration.cli.fetch_jars
	@touch $(STAMP)

$(CLASSES): $(STAMP)
	@echo "Keeping Spark's classes for the JVMs of the tests, which start in half the time then ..."
	@$(BIN)/python tests/quick_jvm.py && touch $@

demo: $(STAMP) ## LogWatch is killed and recovers before your eyes; INPUT=/var/log runs it on a copy of your logs
	@$(BIN)/drainmark demo $(if $(INPUT),--input "$(INPUT)")

chaos: $(STAMP) ## the demo killed at random ten times, then compared; ARGS="--kills 3 --seed 7"
	@$(BIN)/drainmark demo --chaos $(ARGS)

simulate: $(STAMP) ## the protocol without Spark, by seeds; ARGS="--seconds 600 --seed 7", "--mutants", "--script FILE"
	@cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation $(ARGS)

dev: $(STAMP) ## open Dagster's UI on the applications that come with Drainmark
	@DRAINMARK_APPLICATIONS='["bank_alerts", "customers", "enron_ds", "enron_fs", "host_watch", "log_watch", "lois", "vwap", "word_count"]' $(BIN)/drainmark dev

test: $(CLASSES) ## the tests, in three processes; ARGS="-k rewind" passes options to pytest, WORKERS=0 keeps to one process
	@echo "All tests but those marked slow, recovery (a sample is not) or kafka; $(WORKERS) processes, a Spark each. $(ARGS)"
	@$(BIN)/python -m compileall -q drainmark jobs orchestration resources sql # for the processes that tests start
	@# A process gets whole files: tests of a file share runs of applications, which `--dist worksteal` would make again in
	@# each process that takes some of them. What took longest is printed and kept.
	@mkdir -p $(dir $(DURATIONS))
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=60 --durations-min=1 \
	  $(ARGS) | tee $(DURATIONS)

test-fast: $(STAMP) ## the pure and the unit tests, without Spark, in half a minute; ARGS and WORKERS as above
	@echo "Tests of $(FAST) that need no Spark; $(WORKERS) processes. $(ARGS)"
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not spark and not slow and not recovery and not kafka" $(FAST) $(ARGS)

test-recovery: $(CLASSES) ## what `make test` leaves out: the whole recovery matrix, the slow tests, all examples (long)
	@# ARGS may choose tests of one part only: 5 says that the other one has none.
	@DRAINMARK_TEST_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) --dist load -m recovery $(ARGS) || [ $$? -eq 5 ]
	@DRAINMARK_TEST_LONG=1 $(BIN)/python -m pytest -m "slow and not recovery" $(ARGS) || [ $$? -eq 5 ]
	@DRAINMARK_TEST_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "hypothesis and not slow" $(ARGS) || [ $$? -eq 5 ]

test-cluster: $(CLASSES) ## all tests on clusters: workers that share this disk, or nothing but a bucket (more than an hour)
	@$(BIN)/python -m pytest tests/cluster -m "slow or not slow" $(ARGS)

test-postgres: $(STAMP) ## the default recovery tests with the registry in PostgreSQL, from the installed binaries
	@DRAINMARK_TEST_REGISTRY=postgres $(BIN)/python -m pytest tests/recovery $(ARGS)

test-kafka: $(STAMP) ## the tests of `KafkaSource`, on a broker from its Maven jars, fetched once (43 MB)
	@$(BIN)/python -m pytest tests/kafka -m kafka $(ARGS)

test-s3: $(CLASSES) ## the contracts of buckets on SeaweedFS, which checks signatures; fetched once (48 MB)
	@DRAINMARK_TEST_S3=seaweedfs $(BIN)/python -m pytest tests/contract -m "slow or not slow" $(ARGS)

azurite: ## Azure's emulator from npm, so that the tests of buckets run on it, too; needs Node.js (150 MB, installed once)
	@npm install --no-fund --no-audit --prefix build/azurite azurite@3

deploy-check: $(STAMP) ## the schemas of Kubernetes from PyPI (22 MB), so that tests check deploy/kubernetes; then the tests of deploy/
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/deploy-check \
	  "kubernetes-validate==1.37.0" "importlib-resources==7.1.0"
	@$(BIN)/python -m pytest tests/unit/test_deploy.py $(ARGS)

executors-check: $(STAMP) ## Dagster's executors for containers from PyPI (5 MB), and the tests that run what they put into one
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/executors $(EXECUTORS)
	@$(BIN)/python -m pytest tests/integration/test_dagster_containers.py tests/recovery/test_resumed_runs_daemon.py \
	  -m "recovery or not recovery" $(ARGS)

check: $(STAMP) ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(STAMP) ## speed against Structured Streaming and Flink, as ratios, 40 minutes; ARGS="--only bulk --quick", "--all"
	@[ -x $(FLINK_VENV)/bin/python ] || $(MAKE) bench-flink-setup || echo "Going on without Flink."
	@[ -d $(STREAMZ) ] || $(MAKE) bench-streamz-setup || echo "Going on without streamz."
	@[ -d $(LIMIT) ] || $(MAKE) bench-limit-setup || echo "Going on without Polars and DuckDB."
	@$(BIN)/python tests/benchmarks/bench.py $(ARGS)

bench-flink-setup: ## install Flink for `bench`, in an environment of its own (a gigabyte, once)
	@echo "Installing PyFlink into $(FLINK_VENV) (a few minutes) ..."
	@"$(PYTHON)" -m venv $(FLINK_VENV)
	@$(FLINK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "apache-flink==2.3.*" || { \
	  rm -rf $(FLINK_VENV); echo "PyFlink could not be installed; it needs Python 3.9 to 3.12." >&2; exit 1; }

bench-streamz-setup: $(STAMP) ## install streamz for `bench`, in a folder of its own
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(STREAMZ) "streamz==0.6.*" || { \
	  rm -rf $(STREAMZ); echo "streamz could not be installed." >&2; exit 1; }

bench-limit-setup: $(STAMP) ## install Polars and DuckDB for `bench`, in a folder of their own
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(LIMIT) "polars==1.*" "duckdb==1.*" || { \
	  rm -rf $(LIMIT); echo "Polars and DuckDB could not be installed." >&2; exit 1; }

bench-report: $(STAMP) ## draw bench-results.json as one page, bench-report/index.html
	@$(BIN)/python tests/benchmarks/bench_report.py $(ARGS)

docs: $(STAMP) ## write docs/reference anew from the code, and build the pages as a site, build/site
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/website.py
	@echo "build/site is written; to read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

screenshots: $(STAMP) ## take the pictures of docs/screenshots.md (needs Debian's chromium and chromium-driver)
	@DRAINMARK_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/browser -m slow -q

$(RELEASE)/bin/twine:
	@"$(PYTHON)" -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check "build==1.*" "twine>=6.1" "cyclonedx-bom==7.*" || { \
	  rm -rf $(RELEASE); echo "The tools of a release could not be installed." >&2; exit 1; }

dist: $(RELEASE)/bin/twine ## build the wheel and the sdist into build/dist, and check what PyPI would refuse
	@rm -rf build/dist
	@$(RELEASE)/bin/python -m build --quiet --outdir build/dist .
	@$(RELEASE)/bin/twine check --strict build/dist/*

sbom: $(RELEASE)/bin/twine ## write build/sbom.json, CycloneDX: every package of requirements.lock with its digests
	@$(RELEASE)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON \
	  --output-file build/sbom.json requirements.lock 2>/dev/null
	@echo "build/sbom.json is written."

clean: ## remove the environments, caches and build products; never .drainmark
	@rm -rf $(VENV) $(FLINK_VENV) $(STREAMZ) $(STAMP) bench-report build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

requirements: ## make requirements.lock anew from pyproject.toml (needs uv)
	@uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --upgrade --quiet \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file requirements.lock
