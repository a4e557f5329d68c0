"""64 learner hosts and 512 servers, from published figures; every one is an assumption, none was measured here.

The work is DAPO's (arXiv 2503.14476; `configs/dapo.py`): Qwen2.5-32B, 512 problems x 16 rollouts, answers of up to
20,480 tokens, of which the config assumes a median of 3,072, log-normal with sigma 1, after prompts of 256. Its 16
updates on a batch count as one step.

A learner host has eight H200s, a server is one. 989 TFLOP/s and 4.8 TB/s each (NVIDIA's data sheet,
`isocompute_jax.accelerators`); updates reach 40% of the former (Llama 3, arXiv 2407.21783, table 4: 38 to 43% on
H100s), and decoding 60% of the latter, the slow end of `isocompute_jax.plan` (TensorRT-LLM 0.5 reports 5,367 tokens/s
for LLaMA 7B on an H100, FP8, 64 rollouts of 128 + 2,048 tokens: 65%, if keys and values are in FP8 too).

Failures: 419 unexpected interruptions in 54 days of 16,384 GPUs (Llama 3, section 3.3.4), all alike: 0.0038 a day for a
host of eight GPUs. That run kept more than 90% of its time through 466 interruptions, so that one cost 17 minutes at
most; here a learner is back 10 minutes after a loss, of which a minute passes before it is noticed (`stall_s`).
"""

from __future__ import annotations

import numpy as np

from benchmarks.goodput.model import Cluster
from isocompute_jax.accelerators import H200

LEARNER_HOSTS, GPUS_OF_HOST, SERVERS = 64, 8, 512
PARAMETERS, LAYERS, WIDTH, KEYS_WIDTH = 32.8e9, 64, 5120, 1024
"""Qwen2.5-32B; `KEYS_WIDTH` is 8 heads of 128, and those of values are as wide."""
PROMPT, MEDIAN, SIGMA, LONGEST = 256, 3072.0, 1.0, 20_480
MFU, BANDWIDTH = 0.4, 0.6
OTHER_S = 5.0
"""Weights on their way, layout, logs: a guess."""
SLOTS = 48
"""Rollouts of 5,000 tokens whose keys and values, 1.3 GB each, fit beside the weights."""
FAILURES_OF_GPU = 419 / (54 * 16_384)
"""A day."""


def mean_of(sigma: float, median: float = MEDIAN) -> tuple[float, float]:
    """E[L] and E[L^2] of lengths, by drawing many."""
    drawn = np.minimum(median * np.exp(sigma * np.random.default_rng(0).standard_normal(400_000)), LONGEST)
    return float(drawn.mean()), float((drawn**2).mean())


def median_for(sigma: float) -> float:
    """The median that keeps the mean length what it is at `SIGMA`, so that only the tail changes."""
    wanted, low, high = mean_of(SIGMA)[0], 1.0, float(LONGEST)
    while high - low > 1.0:
        median = (low + high) / 2
        low, high = (median, high) if mean_of(sigma, median)[0] < wanted else (low, median)
    return round(high)


def cluster(
    *, staleness: int, group_size: int = 16, sigma: float = SIGMA, failures: float = 0.0, rollouts: int = 512 * 16
) -> Cluster:
    """The one above; `failures` a day are those of learner hosts and servers together, GPU by GPU alike."""
    median = MEDIAN if sigma == SIGMA else median_for(sigma)
    mean, square = mean_of(sigma, median)
    groups = rollouts // group_size
    # Products of every token and attention of every pair, forward once and backward twice. A prompt is read once a
    # group.
    pairs = (PROMPT**2 + 2 * PROMPT * mean + square) / 2
    tokens = rollouts * mean + groups * PROMPT
    flops = 6 * PARAMETERS * tokens + 12 * LAYERS * WIDTH * pairs * rollouts
    bandwidth = BANDWIDTH * H200.memory_bandwidth
    context = PROMPT + square / (2 * mean)
    learner_gpus = LEARNER_HOSTS * GPUS_OF_HOST
    return Cluster(
        servers=SERVERS,
        slots=SLOTS,
        decode_s=2 * PARAMETERS / bandwidth,
        decode_rollout_s=context * 2 * LAYERS * KEYS_WIDTH * 2 / bandwidth,
        learner_s=flops / (learner_gpus * H200.flops * MFU) + OTHER_S,
        groups=groups,
        group_size=group_size,
        median=median,
        sigma=sigma,
        longest=LONGEST,
        staleness=staleness,
        learner_failures=failures * learner_gpus / (learner_gpus + SERVERS),
        server_failures=failures * SERVERS / (learner_gpus + SERVERS),
        learner_notice_s=60.0,
        learner_restart_s=540.0,
        server_notice_s=60.0,
        server_restart_s=600.0,
        checkpoint_every_s=600.0,
    )
