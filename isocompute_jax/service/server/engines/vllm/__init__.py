"""vLLM as an engine of the sampler service. Only this folder imports vllm and torch."""

from isocompute_jax.service.server.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
