# Everything runs in .venv, which `setup` makes from python3 and pip alone. ARGS="..." is passed on to the command.
PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
# Stamps, written last: an install that did not end leaves none and is started over.
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
BUSY := $(VENV)/.installing

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev study study-smoke test test-slow lint format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(RUNTIME) ## install the package into .venv (PYTHON=python3.12 chooses another Python)

setup-dev: $(DEV) ## the same, with what tests and lint need

study: $(RUNTIME) ## run the whole playbook on the embedded default; goes on where it was stopped
	$(RUN) -m isocompute_jax.study --preset=quick --workdir=runs/study-quick $(ARGS)

study-smoke: $(RUNTIME) ## the same walk in about a minute: too short to find anything
	$(RUN) -m isocompute_jax.study --preset=smoke --workdir=runs/study-smoke $(ARGS)

# A file stays in one process: its fixtures and its compiled programs are then made once.
test: $(DEV) ## the fast tests (WORKERS=2 processes)
	$(RUN) -m pytest -n $(WORKERS) --dist=loadfile $(ARGS)

test-slow: $(DEV) ## the tests that take minutes each
	$(RUN) -m pytest -n $(WORKERS) -m slow $(ARGS)

lint: $(DEV) ## ruff and pyright
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright

format: $(DEV) ## reformat, and fix what can be fixed
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .

bench: $(RUNTIME) ## measure speed and memory
	$(RUN) -m benchmarks $(ARGS)

clean: ## remove caches and build products; .venv and runs/ stay
	rm -rf .cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# $(call install,WHAT): install the project, editable, under the constraints. The file `.installing` names the
# process that has begun to install and not ended. If that process is gone, what it left cannot be trusted and is
# made anew. Some systems ship venv without ensurepip: there, the pip beside python3 puts pip into the environment.
define install
@set -e; \
if [ -e $(BUSY) ] && kill -0 "$$(cat $(BUSY))" 2>/dev/null; then \
  echo "Process $$(cat $(BUSY)) is setting up $(VENV): wait for it (or remove $(BUSY)) and try again." >&2; exit 1; fi; \
if [ -e $(BUSY) ]; then echo "The last set-up did not finish: starting over."; rm -rf $(VENV); fi; \
if ! $(RUN) -m pip --version >/dev/null 2>&1; then \
  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
    echo "isocompute_jax needs Python 3.11 or newer, and $(PYTHON) is not: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }; \
  mkdir -p $(VENV); echo $$$$ >$(BUSY); \
  if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); else \
    $(PYTHON) -m venv --without-pip $(VENV); $(PYTHON) -m pip --python $(RUN) install --quiet pip; fi; fi; \
echo $$$$ >$(BUSY); \
echo "Installing $(1) into $(VENV) (once; a minute or two) ..."; \
$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable "$(1)"; \
rm $(BUSY); touch $@
endef

$(RUNTIME): pyproject.toml constraints.txt
	$(call install,.)

$(DEV): $(RUNTIME)
	$(call install,.[dev])
