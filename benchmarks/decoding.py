"""`python -m benchmarks.decoding`: slots beside dispatch units, in one process, for long-tailed or equal lengths.

    python -m benchmarks.decoding --problems=16 --group_size=16 --slots=64 --tail=1.0
    python -m benchmarks.decoding --problems=8 --group_size=64 --slots=512 --prompt=9 --median=9 --tail=0 --length=18

The second is what the study samples: short prompts and completions, all of which fit one unit.
Both draw the same rollouts of random weights of the embedded shape: the same prompts, and log-normal lengths set by
`max_tokens`, one for each problem. A unit holds as many rollouts as there are slots, and decodes as long as its longest
needs; a slot is refilled when its rollout ends. The unit's time is that of its shape alone, with everything compiled.
Rounds alternate; the ratio is of the medians, and above 1 where slots are faster.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import flags

from isocompute_jax import app, model
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.sampling.in_process import InProcessSampler, UnitShape, sample_unit
from isocompute_jax.sampling.slot_sampler import SlotSampler

PROBLEMS = flags.DEFINE_integer("problems", 16, "Problems.", 1)
GROUP_SIZE = flags.DEFINE_integer("group_size", 16, "Rollouts of each; divides --slots.", 1)
SLOTS = flags.DEFINE_integer("slots", 64, "Rollouts decoded at once, by both.", 8)
LENGTH = flags.DEFINE_integer("length", 256, "Longest prompt and completion.", 2)
PROMPT = flags.DEFINE_integer("prompt", 16, "Length of prompts.", 1)
MEDIAN = flags.DEFINE_float("median", 24.0, "Median length of completions, in tokens.")
TAIL = flags.DEFINE_float("tail", 1.0, "Standard deviation of the logarithm of lengths.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "Timed rounds of each.", 1)


def requests() -> list[SampleRequest]:
    """Groups of log-normal lengths."""
    random = np.random.default_rng(0)
    lengths = np.clip(MEDIAN.value * np.exp(TAIL.value * random.standard_normal(PROBLEMS.value)), 1, None)
    made = []
    for number, length in enumerate(lengths):
        params = SamplingParams(1.0, 1.0, min(int(length), LENGTH.value - PROMPT.value))
        prompt = random.integers(0, model.EMBEDDED.vocab_size, PROMPT.value).astype(np.int32)
        made.append(SampleRequest(str(number), prompt, GROUP_SIZE.value, 0, 0, (), params))
    return made


def time_units(config: model.ModelConfig, params: model.Params, asked: Sequence[SampleRequest]) -> float:
    """Seconds for all groups in units; each unit decodes up to the longest of its groups, as stop tokens would have it.

    `max_tokens` is compiled in, so the unit's is rounded up to a multiple of 16, by which few programs suffice.
    """
    shape = UnitShape(problems=SLOTS.value // GROUP_SIZE.value, rollouts=GROUP_SIZE.value)
    maker = InProcessSampler(
        config, params, pad_token=0, max_prompt_tokens=PROMPT.value, max_rollouts_per_dispatch=SLOTS.value
    )
    started = time.perf_counter()
    for first in range(0, len(asked), shape.problems):
        part = asked[first : first + shape.problems]
        longest = -(-max(request.params.max_tokens for request in part) // 16) * 16
        longest = min(longest, LENGTH.value - PROMPT.value)
        unit = maker.make_unit([(request, 0) for request in part], shape, PROMPT.value)
        samples = sample_unit(
            params, unit, np.float32(1.0), np.float32(1.0), config=config, max_tokens=longest, stop_tokens=()
        )
        jax.device_get(samples)
    return time.perf_counter() - started


def time_slots(sampler: SlotSampler, asked: Sequence[SampleRequest]) -> float:
    """Seconds for all groups in slots."""
    started = time.perf_counter()
    for ticket, request in enumerate(asked):
        sampler.submit(ticket, request)
    while sampler.busy:
        sampler.step()
    return time.perf_counter() - started


def main() -> None:
    """Prints one line."""
    config = dataclasses.replace(model.EMBEDDED, max_positions=LENGTH.value)
    params = model.init_params(config, jax.random.key(0))
    asked = requests()
    sampler = SlotSampler(config, params, slots=SLOTS.value, length=LENGTH.value, chunk_steps=16)
    times: dict[str, list[float]] = {"units": [], "slots": []}
    for number in range(ROUNDS.value + 1):  # the first compiles
        timed = {"units": time_units(config, params, asked), "slots": time_slots(sampler, asked)}
        for name, seconds in timed.items():
            times[name] += [seconds] if number else []
    units, slots = (float(np.median(times[name])) for name in ("units", "slots"))
    tokens = sum(request.params.max_tokens for request in asked) * GROUP_SIZE.value
    print(
        f"{tokens:,} tokens, tail {TAIL.value}: units {tokens / units:,.0f} tokens/s, slots {tokens / slots:,.0f} "
        f"tokens/s, ratio {units / slots:.2f}"
    )


if __name__ == "__main__":
    app.run(main)
