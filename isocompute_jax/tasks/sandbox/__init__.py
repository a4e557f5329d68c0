"""Untrusted Python programs, run where they can do no harm: limits, namespaces, a directory of their own."""

from isocompute_jax.tasks.sandbox.isolation import Isolation, isolation
from isocompute_jax.tasks.sandbox.launch import Call, Failed, Outcome, Sandbox, SandboxLimits

__all__ = ["Call", "Failed", "Isolation", "Outcome", "Sandbox", "SandboxLimits", "isolation"]
