"""Where rollouts come from: the submit-and-stream protocol, and the sampler inside this process."""

from isocompute_jax.sampling.in_process import InProcessSampler
from isocompute_jax.sampling.protocol import Sampler, SampleRequest, SamplingParams

__all__ = ["InProcessSampler", "SampleRequest", "Sampler", "SamplingParams"]
