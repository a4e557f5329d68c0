"""Grading while sampling goes on: groups in, groups with rewards out (see `engine`)."""

from isocompute_jax.tasks.grading.engine import Grades, Grading, OnFailure, RewardConfig, graded

__all__ = ["Grades", "Grading", "OnFailure", "RewardConfig", "graded"]
