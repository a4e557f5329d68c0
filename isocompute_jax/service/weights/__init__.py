"""Weights on their way from a learner to its servers: laid down, pushed, received and checked. Imports no JAX."""
