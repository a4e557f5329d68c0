"""What the installed vLLM can do of what the engine asks of it: looked up in its modules, not in its version number.

Imported once `environment.prepare` has run: it imports vllm.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable
from typing import Any

from isocompute_jax.records.errors import InputError

TOKEN_VERSIONS, NCCL = "token_versions", "nccl"
OURS = {"init_transfer_engine", "start_weight_update", "update_weights", "receive_weights", "finish_weight_update"}
OURS |= {"shutdown"}
"""What `weight_transfer.WeightTransfer` defines: an interface that asks for more is not ours."""


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
    found = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


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
