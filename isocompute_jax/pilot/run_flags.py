"""The flags by which `check` and `pilot` are told of a run: a config's, or the few that most runs need."""

from __future__ import annotations

import dataclasses

from absl import flags

from isocompute_jax import app
from isocompute_jax.experiment.config import RunConfig, from_dict
from isocompute_jax.records.errors import InputError

MODEL = flags.DEFINE_string("model", None, "Hugging Face directory of the base model.")
PROBLEMS = flags.DEFINE_string("problems", None, "Problems to train on, .jsonl or .parquet, or what makes them.")
VALIDATION = flags.DEFINE_string("validation", None, "Held-out problems.")
REWARD = flags.DEFINE_string("reward", None, "What grades every problem; left out, what its task names.")
CHAT_TEMPLATE = flags.DEFINE_enum("chat_template", None, ["auto", "on", "off"], "As config.prompts.chat_template.")
CONFIG = flags.DEFINE_string("config", None, "Config file with all else of the run; override by --config.FIELD=VALUE.")
MAX_PROMPT_TOKENS = flags.DEFINE_integer("max_prompt_tokens", None, "Longest prompt; left out, the config's.")
MAX_TOKENS = flags.DEFINE_integer("max_tokens", None, "Longest completion; left out, the config's.")
FIELDS = {
    "config.model": "--model",
    "config.train_set": "--problems",
    "config.evaluation.sets": "--validation",
    "config.reward.function": "--reward",
    "config.prompts.chat_template": "--chat_template",
    "config.sampling.max_prompt_tokens": "--max_prompt_tokens",
    "config.sampling.max_tokens": "--max_tokens",
}
"""Field of a run's config -> the flag here that sets it, for a command line without a config."""


def config_of_flags() -> RunConfig:
    """The run that the flags say, a config first where there is one."""
    config = from_dict(app.config_values()) if CONFIG.value else RunConfig()
    sampling, prompts, reward = config.sampling, config.prompts, config.reward
    config = dataclasses.replace(
        config,
        model=MODEL.value or config.model,
        train_set=PROBLEMS.value or config.train_set,
        sampling=dataclasses.replace(
            sampling,
            max_prompt_tokens=MAX_PROMPT_TOKENS.value or sampling.max_prompt_tokens,
            max_tokens=MAX_TOKENS.value or sampling.max_tokens,
        ),
        prompts=dataclasses.replace(prompts, chat_template=CHAT_TEMPLATE.value or prompts.chat_template),
        reward=dataclasses.replace(reward, function=REWARD.value or reward.function),
    )
    if VALIDATION.value:
        sets = {"validation": VALIDATION.value}
        config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, sets=sets))
    for path, flag in ((config.model, "model"), (config.train_set or config.curriculum.train_sets, "problems")):
        if not path:
            raise InputError(f"--{flag} is missing: give it, or --config=FILE that says it")
    return config


def left_open() -> list[str]:
    """Fields of `sampling` that neither a config nor a flag has set."""
    return [] if CONFIG.value else [flag.name for flag in (MAX_PROMPT_TOKENS, MAX_TOKENS) if not flag.value]
