"""Weights from the learner's devices to the servers': who sends what to whom, and over what. Imports no JAX."""
