"""Environments with state: what answers a policy's turns, wherever it runs, and what its answers are worth."""

from isocompute_jax.environments.protocol import Environment, Step

__all__ = ["Environment", "Step"]
