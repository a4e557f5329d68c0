"""Experiments: the training loop, evaluation, curation and the embedded base model."""
