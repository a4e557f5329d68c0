"""What a completion is worth: one grader per task, found by name (`registry`)."""

from isocompute_jax.tasks.graders.protocol import AsyncGrader, Grade, Grader
from isocompute_jax.tasks.graders.registry import get_grader

__all__ = ["AsyncGrader", "Grade", "Grader", "get_grader"]
