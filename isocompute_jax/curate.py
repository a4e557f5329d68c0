"""`python -m isocompute_jax.curate`: measure a model's solve rates and cut problem sets by difficulty.

    python -m isocompute_jax.curate --model=runs/study-quick/base --problems=problems.jsonl --out=curated
    python -m isocompute_jax.curate ... --sets=easy,hard --mixture=half=easy:0.5,hard:0.5
    python -m isocompute_jax.curate ... --sets=extremely_hard --samples=128

Sets: easy (avg@k in [0.3, 0.6]), hard ([0, 0.0625]), very_easy ([0.6, 0.9]), extremely_hard (never solved in 128).
"""

from __future__ import annotations

from absl import flags

from isocompute_jax import app
from isocompute_jax.experiment.curation_config import CurationConfig
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks.prompts import PromptConfig

MODEL = flags.DEFINE_string("model", None, "Hugging Face directory of the model to measure.")
PROBLEMS = flags.DEFINE_string("problems", None, "Problem set, .jsonl or .parquet, with id, prompt, answer, task.")
OUT = flags.DEFINE_string("out", None, "Directory to write the measured and the cut sets to.")
define_flags(CurationConfig)
define_flags(PromptConfig)
MIXTURE = flags.DEFINE_multi_string("mixture", [], "A mixture, NAME=SET:SHARE,SET:SHARE; may be repeated.")
TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "Sampling temperature.")
MAX_PROMPT_TOKENS = flags.DEFINE_integer("max_prompt_tokens", 9, "Longest prompt, in tokens.")
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 9, "Longest completion, in tokens.")
MAX_ROLLOUTS = flags.DEFINE_integer("max_rollouts_per_dispatch", 1024, "Completions decoded at once.")
SHOW_PROMPTS = flags.DEFINE_integer(
    "show_prompts", 0, "In place of curating, print the first so many prompts as the model reads them.", lower_bound=0
)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.config import SamplingConfig
    from isocompute_jax.experiment.curate import curate
    from isocompute_jax.experiment.show_prompts import show_prompts
    from isocompute_jax.tasks import read_problems

    problems, prompts = read_problems(needed(PROBLEMS)), from_flags(PromptConfig)
    if SHOW_PROMPTS.value:
        print(show_prompts(problems[: SHOW_PROMPTS.value], needed(MODEL), prompts, limit=MAX_PROMPT_TOKENS.value))
        return
    counts = curate(
        problems,
        needed(OUT),
        model_directory=needed(MODEL),
        sampling=SamplingConfig(
            temperature=TEMPERATURE.value,
            max_prompt_tokens=MAX_PROMPT_TOKENS.value,
            max_tokens=MAX_TOKENS.value,
            max_rollouts_per_dispatch=MAX_ROLLOUTS.value,
        ),
        config=from_flags(CurationConfig, mixtures=dict(parse_mixture(text) for text in MIXTURE.value)),
        prompts=prompts,
    )
    for name, count in counts.items():
        print(f"{name:>16}: {count} problems")
    print(f"written to {OUT.value}")


def needed(flag: flags.FlagHolder[str | None]) -> str:
    """The value of a flag that has no default."""
    if not flag.value:
        raise InputError(f"--{flag.name} is missing")
    return flag.value


def parse_mixture(text: str) -> tuple[str, dict[str, float]]:
    """`half=easy:0.5,hard:0.5` -> name and shares."""
    name, _, parts = text.partition("=")
    try:
        shares = {part.split(":")[0]: float(part.split(":")[1]) for part in parts.split(",")}
    except (IndexError, ValueError):
        raise InputError(f"--mixture={text}: write NAME=SET:SHARE,SET:SHARE, such as half=easy:0.5,hard:0.5") from None
    return name, shares


if __name__ == "__main__":
    app.run(main)
