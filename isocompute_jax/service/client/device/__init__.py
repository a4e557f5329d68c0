"""Weights from the learner's devices to the servers', without a file in between."""
