"""How fast a step was, and how much memory it took."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence

import jax

from isocompute_jax.accelerators import known_device
from isocompute_jax.compiling import compiled_s
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.loop_state import ReadyBatch
from isocompute_jax.learner import PackedBatch
from isocompute_jax.model import ModelConfig
from isocompute_jax.model.flops import Work, step_flops
from isocompute_jax.records.rollout import RolloutGroup


def step_speed(parts: Parts, batch: ReadyBatch, phase_s: Mapping[str, float]) -> dict[str, float | None]:
    """The column `speed` of metrics.jsonl.

    Returns:
      `step_s`, the sum of the phases; `sampled_tokens_per_s` and `trained_tokens_per_s`, drawn tokens of all groups and
      trained tokens of those that took part, each once, over it; `mfu`, of the updates alone: what the model needs for
      them over what the mesh could have computed meanwhile, null where the device's peak is not known; `compiled_s`,
      for how long this process has compiled; and the peaks of memory so far, in bytes: `device_memory` of the fullest
      device of this process, null where it does not say, `host_memory` of this process.
    """
    step_s = sum(phase_s.values())
    sampled = sum(group.num_tokens for group in batch.sampled.groups)
    trained = sum(int(completion.mask.sum()) for group in batch.trained for completion in group.completions)
    config = parts.inputs.model_config
    repeated = isinstance(batch.updates[0].tokens, PackedBatch)
    flops = parts.config.recipe.epochs * model_flops(config, batch.trained, prompts_repeated=repeated)
    devices = jax.devices()[:1] if parts.inputs.mesh is None else list(parts.inputs.mesh.devices.flat)
    peak = peak_flops([device.device_kind for device in devices], config.dtype)
    return {
        "step_s": round(step_s, 6),
        "sampled_tokens_per_s": round(sampled / step_s, 3),
        "trained_tokens_per_s": round(trained / step_s, 3),
        "mfu": None if peak is None else flops / (peak * phase_s["update"]),
        "compiled_s": round(compiled_s(), 6),
        "device_memory": device_memory(),
        "host_memory": host_memory(),
    }


def model_flops(config: ModelConfig, groups: Sequence[RolloutGroup], *, prompts_repeated: bool) -> float:
    """What one update on all of these groups needs, each product once.

    Prompts are read once a group, or, where `prompts_repeated` (packed rows), once a rollout. What trees share beyond
    prompts is counted as if it were not shared.
    """
    tokens = pairs = 0.0
    for group in groups:
        prompt = len(group.prompt_tokens)
        own = [len(completion.tokens) for completion in group.completions]
        before = _seen_pairs(config, prompt)
        tokens += sum(own) + prompt * (len(own) if prompts_repeated else 1)
        pairs += sum(_seen_pairs(config, prompt + length) - before for length in own)
        pairs += before * (len(own) if prompts_repeated else 1)
    return step_flops(config, Work(0, tokens, tokens, pairs, pairs, 1)).model


def _seen_pairs(config: ModelConfig, length: int) -> float:
    """Pairs of query and key that see each other in a sequence, in the mean of the layers (see `model.flops`)."""
    whole = length**2 / 2
    if config.local_layers is None:
        return whole
    chunk, local = config.attention_chunk, sum(config.local_layers) / config.num_layers
    within = (length // chunk) * chunk**2 / 2 + (length % chunk) ** 2 / 2
    return local * within + (1 - local) * whole


def peak_flops(kinds: Sequence[str], dtype: str) -> float | None:
    """Operations per second of devices of these kinds together, in a model's dtype; None where one is not known."""
    known = [known_device(kind) for kind in kinds]
    found = [device for device in known if device is not None]
    if len(found) < len(known):
        return None
    return sum(device.flops if dtype == "bfloat16" else device.flops_float32 for device in found)


def device_memory() -> int | None:
    """Peak bytes in use of this process's fullest device; None where devices do not say, as CPUs do not."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max((stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat), default=None)


def host_memory() -> int:
    """Peak bytes of memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # elsewhere it is in KiB
