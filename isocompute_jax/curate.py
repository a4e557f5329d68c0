"""`python -m isocompute_jax.curate`: measure a model's solve rates and cut problem sets by difficulty.

    python -m isocompute_jax.curate --model=runs/study-quick/base --problems=problems.jsonl --out=curated
    python -m isocompute_jax.curate ... --sets=easy,hard --mixture=half=easy:0.5,hard:0.5
    python -m isocompute_jax.curate ... --sets=extremely_hard --samples=128
    python -m isocompute_jax.curate ... --sets=hard --set=middle=0.2:0.5 --set=solved=0.9:1
    python -m isocompute_jax.curate ... --reward=rewards:mine --reward_deadline_s=10
    python -m isocompute_jax.curate --resolved_config=runs/hard/config.json --problems=problems.jsonl --out=curated
    python -m isocompute_jax.curate ... --endpoints=node1:50051,node2:50051 --token_file=token --dtype=bfloat16

Sets: easy (avg@k in [0.3, 0.6]), hard ([0, 0.0625]), very_easy ([0.6, 0.9]), extremely_hard (never solved in 128), and
any that --set names. Every rollout is recorded as it comes: the same command goes on after a kill, with more --samples
it draws only those that are new, and with other sets it cuts again without drawing any.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, cast

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import HELP, use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.experiment.curation.config import CurationConfig, Range
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say
from isocompute_jax.tasks.grading.engine import RewardConfig
from isocompute_jax.tasks.prompts import PromptConfig

with app.imports():
    from isocompute_jax.experiment.config import MeshConfig, RunConfig, SamplingConfig, ThinkingConfig, TrackConfig
    from isocompute_jax.service.client.service_config import ServiceConfig

MODEL = flags.DEFINE_string("model", None, "Hugging Face directory of the model to measure.")
RESOLVED = flags.DEFINE_string(
    "resolved_config",
    None,
    "In place of --model and the flags of sampling, prompts, rewards and mesh: those of a run, its config.json.",
)
TRUST_CONFIG = flags.DEFINE_bool(
    "trust_config",
    False,
    "Follow --resolved_config also where it names functions, addresses, and variables that hold secrets: only one that "
    "you know (docs/trust.md).",
)
PROBLEMS = flags.DEFINE_string("problems", None, "Problem set, .jsonl or .parquet, with id, prompt, answer, task.")
OUT = flags.DEFINE_string(
    "out", None, "Directory to write the record and the cut sets to; continued if it holds this very measurement."
)
define_flags(CurationConfig)
SET = flags.DEFINE_multi_string("set", [], "A set with thresholds of its own, NAME=LOW:HIGH; may be repeated.")
SAMPLING = list(define_flags(PromptConfig).values())
MIXTURE = flags.DEFINE_multi_string("mixture", [], "A mixture, NAME=SET:SHARE,SET:SHARE; may be repeated.")
TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "Sampling temperature.")
MAX_PROMPT_TOKENS = flags.DEFINE_integer("max_prompt_tokens", 9, "Longest prompt, in tokens.")
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 9, "Longest completion, in tokens.")
MAX_ROLLOUTS = flags.DEFINE_integer(
    "max_rollouts_per_dispatch", 1024, "Completions decoded at once, where this process samples."
)
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Dtype the model computes in, on servers too.")
SAMPLING += [*define_flags(ThinkingConfig).values(), *define_flags(RewardConfig).values()]
define_flags(ServiceConfig, leave_out=("recompute_cache",))
SAMPLING += define_flags(MeshConfig, leave_out=("context",)).values()
COMPILE_CACHE = flags.DEFINE_string("compile_cache", "", HELP)
SHOW_PROMPTS = flags.DEFINE_integer(
    "show_prompts", 0, "In place of curating, print the first so many prompts as the model reads them.", lower_bound=0
)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.devices import keep_freed_memory
    from isocompute_jax.experiment.curation.curate import curate
    from isocompute_jax.experiment.curation.measure import naming_flags
    from isocompute_jax.experiment.inputs import show_prompts
    from isocompute_jax.tasks import ProblemFile

    path, out = needed(PROBLEMS), "" if SHOW_PROMPTS.value else needed(OUT)
    with naming_flags():
        source = source_of_a_run(RESOLVED.value) if RESOLVED.value else source_of_flags()
        problems = ProblemFile(path, grader_name=source.reward.name_for)
        if SHOW_PROMPTS.value:
            first = list(itertools.islice(problems, SHOW_PROMPTS.value))
            say(show_prompts(first, source.model, source.prompts, limit=source.sampling.max_prompt_tokens))
            return
        config = from_flags(
            CurationConfig,
            ranges=dict(parse_set(text) for text in SET.value),
            mixtures=dict(parse_mixture(text) for text in MIXTURE.value),
        )
        check_driver_for_jax()
        keep_freed_memory()
        use_training_cache(COMPILE_CACHE.value)
        counts = curate(problems, out, source=source, config=config)
    for name, count in counts.items():
        say(f"{name:>16}: {count} problems")
    say(f"written to {OUT.value}")


def source_of_flags() -> RunConfig:
    """The model and how it is sampled, as the flags say."""
    return RunConfig(
        model=needed(MODEL),
        sampling=SamplingConfig(
            temperature=TEMPERATURE.value,
            max_prompt_tokens=MAX_PROMPT_TOKENS.value,
            max_tokens=MAX_TOKENS.value,
            max_rollouts_per_dispatch=MAX_ROLLOUTS.value,
            thinking=from_flags(ThinkingConfig),
        ),
        dtype=cast(Any, DTYPE.value),
        service=from_flags(ServiceConfig),
        mesh=from_flags(MeshConfig),
        prompts=from_flags(PromptConfig),
        reward=from_flags(RewardConfig),
    )


def source_of_a_run(path: str, *, model: str = "") -> RunConfig:
    """Those of a run; where its samplers are say the flags. `model` is measured in place of its base model."""
    from isocompute_jax.experiment.config import check_trusted, read_resolved

    own = (*([] if model else [MODEL]), TEMPERATURE, MAX_PROMPT_TOKENS, MAX_TOKENS, MAX_ROLLOUTS, DTYPE, *SAMPLING)
    if given := [flag.name for flag in own if flag.present]:
        raise InputError(f"--{given[0]} is said by --resolved_config={path}; leave one of them out")
    service = from_flags(ServiceConfig)
    config = dataclasses.replace(read_resolved(path, "--resolved_config"), service=service, track=TrackConfig())
    config = dataclasses.replace(config, model=model or config.model)
    if not TRUST_CONFIG.value:
        check_trusted(config, path, given=[f"service.{field.name}" for field in dataclasses.fields(service)])
    return config


def needed(flag: flags.FlagHolder[str | None]) -> str:
    """The value of a flag that has no default."""
    return app.needed(flag, f"{flags.FLAGS[flag.name].help} See --help")


def parse_set(text: str) -> tuple[str, Range]:
    """`middle=0.2:0.5` -> name and range."""
    name, _, ends = text.partition("=")
    try:
        low, high = map(float, ends.split(":"))
        if not name or not math.isfinite(low + high):
            raise ValueError
    except ValueError:
        raise InputError(f"--set={text}: write NAME=LOW:HIGH, such as middle=0.2:0.5") from None
    return name, (low, high)


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
