"""Untrusted Python programs, run where they can do no harm: limits, namespaces, a directory of their own."""

from isocompute_jax.tasks.sandbox.launch import Call, Failed, Isolation, Outcome, Sandbox, SandboxLimits, isolation

__all__ = ["Call", "Failed", "Isolation", "Outcome", "Sandbox", "SandboxLimits", "isolation"]
