"""Grading while sampling goes on: groups in, groups with rewards out (see `engine`)."""

from isocompute_jax.tasks.grading.engine import (
    FailureLog,
    Grades,
    Grading,
    OnFailure,
    RewardConfig,
    graded,
    metric_columns,
)

__all__ = ["FailureLog", "Grades", "Grading", "OnFailure", "RewardConfig", "graded", "metric_columns"]
