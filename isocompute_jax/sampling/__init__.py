"""Where rollouts come from: the submit-and-stream protocol, and the sampler inside this process."""

from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.sampling.in_process import InProcessSampler
from isocompute_jax.sampling.protocol import NO_DEVICES, TRAIN, Sampler
from isocompute_jax.sampling.turns import Turn, TurnPolicy, TurnSampler

__all__ = [
    "NO_DEVICES",
    "TRAIN",
    "InProcessSampler",
    "SampleRequest",
    "Sampler",
    "SamplingParams",
    "Turn",
    "TurnPolicy",
    "TurnSampler",
]
