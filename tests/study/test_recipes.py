"""Recipes of configs/: they fit the accelerators that they name, and their embedded twins are them, and train."""

import dataclasses
import importlib
import math
import pathlib
import re
from typing import Any

import pytest

from isocompute_jax import model
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig, override
from isocompute_jax.experiment.inputs import check_mesh, model_config_of
from isocompute_jax.experiment.loop import train
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.records import run_files
from isocompute_jax.study.embedded import twin
from isocompute_jax.tasks import RewardConfig
from tests.experiment import builders
from tests.model.tiny import random_params

ROOT = pathlib.Path(__file__).parents[2]
NOT_RECIPES = {"arithmetic_hard", "playbook", "smollm2", "start"}  # runs of studies, what six share, one of one's own
FILES = {path.stem for path in (ROOT / "configs").glob("*.py")} - NOT_RECIPES
RECIPES = sorted(name for name in FILES if not name.endswith("_embedded"))
TWINS = sorted(FILES - set(RECIPES))

ALONE = {"dppo", "sapo", "icepop", "kpop", "maxrl", "distillation", "sft"}
"""Losses and data on the embedded model alone: rows of docs/recipes.md, "This year's losses"."""

KEPT = (
    "loss", "curriculum", "max_staleness", "compute.head", "sampling.temperature", "length.overlong",
    "length.overlong_penalty", "length.truncated",
    *(f"optimizer.{name}" for name in ("lr_scaling_exponent", "warmup_steps", "b1", "b2", "eps", "weight_decay")),
    *(f"recipe.{name}" for name in ("advantage_scale", "aggregation", "zero_variance_groups", "baseline")),
    *(f"recipe.{name}" for name in ("reward_values", "healthy", "epochs", "minibatches")),
)  # fmt: skip
"""What a twin has of its recipe."""


def config_of(name: str) -> RunConfig:
    """The config of a file, by its own `get_config`."""
    return importlib.import_module(f"configs.{name}").get_config()


def twin_of(recipe: str) -> str:
    """The name of a recipe's twin: one for all models."""
    found = re.match(r"isocompute_(easy|hard)|scalerl", recipe)
    return f"{found[0] if found else recipe}_embedded"


def at(config: RunConfig, field: str) -> Any:
    """The value of a field by its dotted name."""
    value: Any = config
    for name in field.split("."):
        value = getattr(value, name)
    return value


def test_every_recipe_of_the_field_is_here_and_has_a_twin():
    models = ("qwen2_5_7b", "qwen3_4b", "llama3_1_8b")
    playbook = {f"isocompute_{kind}_{name}" for kind in ("easy", "hard") for name in models}
    others = {"dapo", "dr_grpo", "gspo", "cispo_minimax_m1", "grpo_deepseek", "magistral", "rloo"}
    assert set(RECIPES) == {*playbook, *others, "scalerl_8b", "scalerl_scout"}
    assert set(TWINS) == {twin_of(recipe) for recipe in RECIPES} | {f"{name}_embedded" for name in ALONE}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_goes_together_with_its_layout(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = config_of(name).resolved()
    topology = parse_topology(config.plan.topology)
    assert math.prod(vars(config.mesh).values()) == topology.size
    shape, sampling = model_config_of(config), config.sampling
    model.check_length(shape, sampling.max_prompt_tokens, sampling.max_tokens)
    check_mesh(config.mesh, shape)
    assert sampling.max_prompt_tokens + sampling.max_tokens <= config.packing.row_tokens
    rows = config.recipe.microbatch_tokens // config.packing.row_tokens
    assert rows % (config.mesh.data * config.mesh.fsdp * config.mesh.expert) == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_twin_is_its_recipe_but_for_size(recipe):
    large, small = config_of(recipe), config_of(twin_of(recipe))
    for field in KEPT:
        assert at(small, field) == at(large, field), field
    small.resolved()
    assert small.group_size == min(large.group_size, 16)
    assert small.window == large.window - (large.max_staleness > 0)  # k batches of a phase, k + 1 in flight


ON_POLICY = {"ratio_max": (1.0, 1.0), "clip_fraction": (0.0, 0.0)}
SEEN = {
    "isocompute_easy": {**ON_POLICY, "updates": 1, "kl": (1e-9, math.inf), "length_penalty": None},
    "isocompute_hard": {**ON_POLICY, "updates": 1, "kl": None, "correction": (0.9, 1.1)},
    "scalerl": {"updates": 1, "staleness": (0, 5), "retired_problems": (0, 16), "correction_cut": (0.0, 0.0)},
    "dapo": {"updates": 4, "sampled_groups": (4, 40), "length_penalty": (1e-3, 1.0), "clip_fraction_last": (0, 1)},
    "dr_grpo": {"updates": 4, "kl": None, "ratio_last": (0.5, 2.0)},
    "gspo": {"updates": 4, "clip_fraction_last": (1e-6, 1.0)},  # so narrow a clip cuts after the first update
    "cispo_minimax_m1": {"updates": 4, "sampled_groups": (4, 40), "length_penalty": (1e-3, 1.0)},
    "grpo_deepseek": {**ON_POLICY, "updates": 1, "kl": (1e-12, 1.0)},
    "magistral": {"updates": 1, "staleness": (0, 1), "length_penalty": (1e-4, 0.1)},
    "rloo": {**ON_POLICY, "updates": 1, "kl": (-1.0, 1.0)},
    "dppo": {"updates": 4, "clip_fraction_last": (0, 1), "correction": (1.0, 1.0)},
    "sapo": {"updates": 4, "clip_fraction_last": (0.0, 0.0), "ratio_last": (0.5, 2.0)},
    "icepop": {"updates": 1, "correction_cut": (0.0, 0.5)},
    "kpop": {"updates": 1, "correction_cut": (0.0, 0.5)},
    "maxrl": {**ON_POLICY, "updates": 1, "kl": None},
    "distillation": {"updates": 1, "kl": (1e-12, 1.0), "policy_loss": (0.0, 0.0)},
    "sft": {"updates": 1, "reward": (1.0, 1.0), "loss": (0.0, 10.0)},
}
"""Columns of a step but the first: the greatest, an interval, or None where the column says nothing."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> RunConfig:
    """A random model on digit problems."""
    return builders.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_a_twin_trains_as_its_recipe_says(name, tiny, tmp_path):
    """Six steps of a random model, 4 x 4 rollouts each: what makes the recipe what it is shows in the log."""
    given = config_of(name)
    if given.teacher:
        params = random_params(builders.MODEL, seed=1, scale=0.1)
        model.save_checkpoint(tmp_path / "teacher", builders.MODEL, params, tokenizer_from=tiny.model)
    config = dataclasses.replace(
        given,
        model=tiny.model,
        train_set=tiny.train_set,
        reward=RewardConfig(function="tests.experiment.step_rewards:about_half"),
        teacher=given.teacher and str(tmp_path / "teacher"),
        group_size=min(given.group_size, 4),
        problems_per_batch=4,
        sampling=dataclasses.replace(tiny.sampling, temperature=given.sampling.temperature),
        recipe=dataclasses.replace(given.recipe, minibatches=min(given.recipe.minibatches, 4)),
        optimizer=dataclasses.replace(given.optimizer, base_lr=1e-2, warmup_steps=2),
        evaluation=EvaluationConfig(sets={"validation": tiny.evaluation.sets["validation"]}, points=1),
    )
    config = override(config, "max_compute", 6 * config.rollouts_per_step)
    train(config, tmp_path / "run")
    lines = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    assert 0.6 * config.max_compute < lines[-1]["compute"] <= config.max_compute  # dynamic sampling leaves a rest
    for column, expected in SEEN[name.removesuffix("_embedded")].items():
        values: list[Any] = [line.get(column) for line in lines[1:]]
        if expected is None:
            assert set(values) == {None}, column
        elif isinstance(expected, tuple):
            assert all(expected[0] <= value <= expected[1] for value in values), (column, values)
        else:
            assert max(values) == expected, (column, values)


NEEDS = {  # a field that is not read unless another is on
    "loss.kl_in": "loss.kl_coef",
    "length.overlong_penalty": "length.overlong",
    "loss.correction_level": "loss.correction_mode",
}


def in_the_table(config: RunConfig, field: str) -> str:
    """A value as docs/recipes.md writes it: `-` for what is off or not read."""
    if (field in NEEDS and at(config, NEEDS[field]) in (0, "off")) or (
        field.startswith("loss.clip") and config.loss.policy_loss == "reinforce"
    ):
        return "-"
    value = at(config, field)
    if isinstance(value, bool) or value in (0, "off"):
        return "yes" if value is True else "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value


def test_the_table_of_the_docs_is_what_the_configs_say():
    """docs/recipes.md compares the recipes knob by knob; its column of a family is the first of its files."""
    text = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    table = rows[next(i for i, row in enumerate(rows) if row[0] == "knob") :]
    configs = [config_of(next(file for file in RECIPES if file.startswith(name))).resolved() for name in table[0][1:]]
    assert {re.match(name, recipe) and name for recipe in RECIPES for name in table[0][1:]} - {None} == set(
        table[0][1:]
    )
    for field, *cells in table[2:]:
        assert cells == [in_the_table(config, field) for config in configs], field


def test_a_twin_trains_on_the_set_it_is_asked_for():
    assert "/hard/" in twin(RunConfig(group_size=64)).train_set
    easy = twin(RunConfig(group_size=64), "easy")
    assert "/easy/" in easy.train_set and "/easy/" in easy.evaluation.sets["validation"]
