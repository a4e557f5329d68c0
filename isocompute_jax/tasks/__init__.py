"""What is trained on: graders, tokenizers, prompts as the model reads them, and problem sets in files."""

from isocompute_jax.tasks.embedded import Teacher, make_problems, make_teacher
from isocompute_jax.tasks.gguf_tokenizer import write_gguf_tokenizer
from isocompute_jax.tasks.graders.protocol import Grade, Grader
from isocompute_jax.tasks.graders.registry import get_grader
from isocompute_jax.tasks.grading import Grades, Grading, RewardConfig, graded
from isocompute_jax.tasks.problem_sets import ProblemFile, read_problems, write_problems
from isocompute_jax.tasks.prompts import PromptConfig, Prompts
from isocompute_jax.tasks.splitting import leakage_key, split
from isocompute_jax.tasks.tokenizer import Tokenizer, load_tokenizer, save_arithmetic_tokenizer, token_texts

__all__ = [
    "Grade",
    "Grader",
    "Grades",
    "Grading",
    "ProblemFile",
    "PromptConfig",
    "Prompts",
    "RewardConfig",
    "Teacher",
    "Tokenizer",
    "get_grader",
    "graded",
    "leakage_key",
    "load_tokenizer",
    "make_problems",
    "make_teacher",
    "read_problems",
    "save_arithmetic_tokenizer",
    "split",
    "token_texts",
    "write_gguf_tokenizer",
    "write_problems",
]
