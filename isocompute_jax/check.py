r"""`python -m isocompute_jax.check`: one look at a model, its problems and its reward before a run is paid for.

    python -m isocompute_jax.check --model=runs/study-quick/base --problems=runs/study-quick/problems.jsonl
    python -m isocompute_jax.check --model=models/mine --problems=problems.jsonl --reward=math --max_tokens=1024
    python -m isocompute_jax.check --config=configs/start.py --config.model=models/mine \
        --config.train_set=problems.jsonl --config.reward=math --config.service.endpoints=node1:50051

Draws 64 rollouts, in this process or from the config's servers, and trains nothing. Each line of its page says fine,
look or wrong, what was found, and the field to set (docs/pilot.md); --out is the same page with answers to judge. The
exit code is 2, that of bad input, if any line is wrong.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.records.errors import InputError, set_by_flags
from isocompute_jax.records.printing import say

with app.imports():
    from isocompute_jax.experiment.config import RunConfig, from_dict

MODEL = flags.DEFINE_string("model", None, "Hugging Face directory of the base model.")
PROBLEMS = flags.DEFINE_string("problems", None, "Problems to train on, .jsonl or .parquet, or what makes them.")
VALIDATION = flags.DEFINE_string("validation", None, "Held-out problems.")
REWARD = flags.DEFINE_string("reward", None, "What grades every problem; left out, what its task names.")
CHAT_TEMPLATE = flags.DEFINE_enum("chat_template", None, ["auto", "on", "off"], "As config.prompts.chat_template.")
CONFIG = flags.DEFINE_string("config", None, "Config file with all else of the run; override by --config.FIELD=VALUE.")
MAX_PROMPT_TOKENS = flags.DEFINE_integer("max_prompt_tokens", None, "Longest prompt; left out, the config's.")
MAX_TOKENS = flags.DEFINE_integer("max_tokens", None, "Longest completion; left out, the config's.")
MEASURED = flags.DEFINE_integer("measured", 8, "Problems that rollouts are drawn of.", lower_bound=1)
SAMPLES = flags.DEFINE_integer("samples", 8, "Rollouts of each of them.", lower_bound=2)
OUT = flags.DEFINE_string("out", "check.html", "The page as a file.")

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


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.experiment.curation.measure import check_environment
    from isocompute_jax.pilot.check import look
    from isocompute_jax.pilot.lines import lines, page_of, text_of
    from isocompute_jax.records.run_files import write_atomic

    config = config_of_flags()
    check_environment(config)
    check_driver_for_jax()
    use_training_cache()
    with tempfile.TemporaryDirectory() as directory, set_by_flags({} if CONFIG.value else FIELDS):
        facts = look(
            config,
            pathlib.Path(directory) / "measured",
            problems=MEASURED.value,
            samples=SAMPLES.value,
            whole=bool(CONFIG.value),
        )
        found = lines(facts)
    write_atomic(pathlib.Path(OUT.value), page_of(facts, found))
    say(text_of(found))
    wrong = list(dict.fromkeys(line.what for line in found if line.state == "wrong"))
    if wrong:
        raise InputError(f"wrong: {', '.join(wrong)}; what to set stands there, and answers to judge in {OUT.value}")
    say(f"nothing is wrong; answers to judge are in {OUT.value}")


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


if __name__ == "__main__":
    app.run(main)
