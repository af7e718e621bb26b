# Make alone lists the targets. Two stamps keep the environment current: `core` holds the
# package and its own dependencies (enough for the demo), `dev` adds what tests need.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
CORE := $(VENV)/core.stamp
DEV := $(VENV)/dev.stamp
# More workers than cores: about a third of the tests' time is waiting for brokers, leases and processes.
PYTEST_ARGS ?= -n 4 --dist loadgroup --no-loadscope-reorder
TYPES := $(PY) -m mypy --no-error-summary && $(VENV)/bin/lint-imports --no-logo

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-chain test check pyright format servers bench proof soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

$(CORE): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q -c constraints.txt -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $(CORE) $@

demo: $(CORE) ## run the demo; needs no server
	@$(VENV)/bin/oncebox demo

demo-chain: $(DEV) ## run three services under kills; DATABASE=postgresql://…, BROKER=amqp://…, SCANS, KILLS
	@$(PY) -m examples.delivery $(if $(DATABASE),--database $(DATABASE)) $(if $(BROKER),--broker $(BROKER)) \
		$(if $(SCANS),--scans $(SCANS)) $(if $(KILLS),--kills $(KILLS))

# Types and layers are looked at beside the tests: alone they would leave a core idle. Tests start hundreds of
# interpreters: where PYTHONDONTWRITEBYTECODE is set, each would compile the whole package, half of what it costs.
# The first look at the tests is for what pytest makes of their assertions: it is kept, and no worker makes it again.
test: $(DEV) servers style ## check, and run every test against real servers
	@mkdir -p reports
	@$(PY) -m compileall -q src tests proof examples benchmarks
	@{ $(TYPES); } >reports/types.log 2>&1 & types=$$!; \
		env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest --collect-only -qq >/dev/null 2>&1; \
		$(PY) -m pytest $(PYTEST_ARGS); tests=$$?; \
		wait $$types || { cat reports/types.log; exit 1; }; \
		exit $$tests

check: style ## lint, formatting, types, layers
	@$(TYPES)

.PHONY: style
style: $(DEV)
	@$(VENV)/bin/ruff check -q
	@$(VENV)/bin/ruff format -q --check

pyright: $(DEV) ## second opinion on the types (needs node)
	@$(VENV)/bin/pyright

format: $(DEV) ## format and apply the safe lint fixes
	@$(VENV)/bin/ruff check -q --fix
	@$(VENV)/bin/ruff format -q

servers: ## install the servers that PyPI does not carry
	@scripts/install-servers.sh

$(VENV)/bench.stamp: $(DEV)
	@$(PY) -m pip install -q -c constraints.txt -e '.[dev,bench]'
	@touch $@

bench: $(VENV)/bench.stamp ## measure what protection costs; QUICK=1, DATABASE=url; bench-peers adds peers
	@$(PY) -m benchmarks $(BENCH_ARGS)

.PHONY: bench-peers
bench-peers: ## install the peers that `bench` compares with, into an environment of their own
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -q -r benchmarks/peers/requirements.txt

proof: $(DEV) ## try to break the promise: crash points, interleavings, a model; SEED=n repeats
	@$(PY) -m proof $(PROOF_ARGS)

soak: $(DEV) ## kill workers, database and brokers, purge ten million rows; MINUTES=10, SEED=n, SOAK_ARGS=…
	@$(PY) -m proof.soak $(MINUTES) $(if $(SEED),--seed $(SEED)) $(SOAK_ARGS)

clean: ## remove the environment, caches and reports
	@rm -rf $(VENV) reports .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
