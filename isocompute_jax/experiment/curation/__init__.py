"""Curation: a model's own solve rate on every problem, measured through any sampler, and problem sets cut by it."""
