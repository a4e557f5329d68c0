"""Compute-optimal reinforcement learning for language models, in JAX.

Importing this package imports nothing heavy and initialises no device; import the room you need:
`isocompute_jax.learner`, `isocompute_jax.sampling`, `isocompute_jax.model`, `isocompute_jax.fit`, ...
"""

__version__ = "0.1.0"
