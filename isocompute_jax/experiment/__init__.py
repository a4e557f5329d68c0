"""Experiments: the training loop, evaluation, curation, the embedded base model and sweeps."""
