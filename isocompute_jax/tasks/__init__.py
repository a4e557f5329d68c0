"""What is trained on: verifiable tasks, their tokenizers, and problem sets in files."""

from isocompute_jax.tasks.arithmetic import Teacher, make_problems, make_teacher
from isocompute_jax.tasks.problem_sets import ProblemFile, read_problems, write_problems
from isocompute_jax.tasks.prompts import PromptConfig, Prompts
from isocompute_jax.tasks.protocol import Task, get_task, grade
from isocompute_jax.tasks.splitting import leakage_key, split
from isocompute_jax.tasks.tokenizer import Tokenizer, load_tokenizer, save_arithmetic_tokenizer

__all__ = [
    "ProblemFile",
    "PromptConfig",
    "Prompts",
    "Task",
    "Teacher",
    "Tokenizer",
    "get_task",
    "grade",
    "leakage_key",
    "load_tokenizer",
    "make_problems",
    "make_teacher",
    "read_problems",
    "save_arithmetic_tokenizer",
    "split",
    "write_problems",
]
