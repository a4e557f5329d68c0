"""The config of a run: presets, overrides, round trips."""

import dataclasses
import importlib
import json
import re

import pytest

from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.command_line import read_config
from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.experiment.config import (
    HEALTHY_COEFFICIENT,
    AgreementConfig,
    AlarmsConfig,
    CheckpointsConfig,
    ComputeConfig,
    CurriculumConfig,
    EvaluationConfig,
    LengthConfig,
    MeshConfig,
    PackingConfig,
    PlanConfig,
    PromptConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
    TrackConfig,
    from_dict,
    override,
)
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.model import LoraConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import RewardConfig

BASE = RunConfig(model="m", train_set="t.jsonl")


def with_loss(healthy, kl, entropy) -> RunConfig:
    return dataclasses.replace(
        BASE, recipe=RecipeConfig(healthy=healthy), loss=LossConfig(kl_coef=kl, entropy_coef=entropy)
    )


# --- the healthy presets


def test_easy_turns_both_terms_on():
    loss = with_loss("easy", 0.0, 0.0).resolved().loss
    assert loss.kl_coef == loss.entropy_coef == HEALTHY_COEFFICIENT > 0


@pytest.mark.parametrize(("kl", "entropy"), [(0.1, 0.2), (0.1, 0.0)])
def test_easy_keeps_coefficients_that_are_given(kl, entropy):
    loss = with_loss("easy", kl, entropy).resolved().loss
    assert (loss.kl_coef, loss.entropy_coef) == (kl, entropy)


def test_easy_refuses_entropy_without_kl_and_says_why():
    with pytest.raises(InputError, match=r"loss\.entropy_coef is on without config\.loss\.kl_coef.*entropy explodes"):
        with_loss("easy", 0.0, 0.1).resolved()


@pytest.mark.parametrize("healthy", ["hard", "mixture"])
def test_hard_and_mixture_require_both_off(healthy):
    config = with_loss(healthy, 0.0, 0.0)
    assert config.resolved() == config
    for kl, entropy in ((0.1, 0.0), (0.0, 0.1), (0.1, 0.1)):
        with pytest.raises(InputError, match=f"under recipe.healthy={healthy} both are off.*recipe.healthy=none"):
            with_loss(healthy, kl, entropy).resolved()


@pytest.mark.parametrize(("kl", "entropy"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1)])
def test_none_allows_every_ablation(kl, entropy):
    config = with_loss("none", kl, entropy)
    assert config.resolved() == config


# --- building, overriding, comparing


def config_with_everything_changed() -> RunConfig:
    """No field has its default, so that one that is lost shows."""
    return RunConfig(
        model="m",
        train_set="t.jsonl",
        teacher="teacher",
        supervised="text",
        group_size=4,
        problems_per_batch=3,
        max_compute=1000,
        problem_set_size=5,
        seed=6,
        checkpoint_every_s=7.0,
        export_every=8,
        dtype="bfloat16",
        max_staleness=2,
        asynchrony="phases",
        prompts=PromptConfig("on", "s", "t", "<think>", {"enable_thinking": False}),
        sampling=SamplingConfig(0.5, 0.9, 8, 10, 11),
        learner_temperature=0.6,
        fork="runs/a@7",
        recipe=RecipeConfig("none", "sequence_mean", "keep", "leave_one_out", "plus_minus_one", "easy", 11, 12, 13),
        loss=LossConfig(
            "cispo", 1.0, 4.0, 5.0, "sampler", "sequence", "mask", 0.25, 3.0, kl_in="reward", chunk_tokens=12
        ),
        reward=RewardConfig("rewards:f", {"t": "exact"}, "stop", 2.0, 3, 4),
        environment=EnvironmentConfig("number_hunt", {"largest": 3}, 2, 3, 4, ("=",), "text", "turn", 5.0, 6, 7),
        schedule=ScheduleConfig("4@0,8@9", 512, "2@0,4@9", "wsd", 0.5, 0.6, "variance", 4, 8, 9, "theory"),
        optimizer=OptimizerConfig(1e-3, 13, 1.0, 14, 0.8, 0.9, 1e-6, 0.1, 2.0, "bfloat16"),
        evaluation=EvaluationConfig({"v": "v.jsonl", "t": "t.jsonl"}, 15, 16, 17, 18, 19, 0.5),
        mesh=MeshConfig(2, 3, 4),
        compute=ComputeConfig("full", "chunked", "bf16"),
        packing=PackingConfig(256),
        alarms=AlarmsConfig(23, 24.0, 25.0, 26.0, 27.0, 0.28, 0.29, 0.3),
        curriculum=CurriculumConfig(
            True,
            3.0,
            0.9,
            4,
            "epoch",
            "hard_to_easy",
            "avg@4",
            (0.2,),
            (0.5, 0.5),
            {"a": "a.jsonl", "b": "b.jsonl"},
            "fixed",
            {"a": 1.0, "b": 3.0},
        ),
        length=LengthConfig("correct", 2, 8, 0.5, "mask"),
        checkpoints=CheckpointsConfig(5, 6, "v/avg@16", 10),
        track=TrackConfig(True, "p", 2, 3),
        plan=PlanConfig("h200:1x8", 1, 2.0, 3, 4, 5, 6),
        service=ServiceConfig("a:1,b:2", "f", "t", "ca", "cert", "key", "stream", "/s", 3, True, 5.0, 6.0, False),
        lora=LoraConfig(4, 8.0, "q_proj", "adapter", True),
        agreement=AgreementConfig(20, 0.3, 0.4, 21, 22),
    )


def test_json_and_back():
    config = config_with_everything_changed()
    defaults = dataclasses.asdict(RunConfig())
    same = [name for name, value in dataclasses.asdict(config).items() if value == defaults[name]]
    assert same == []
    assert from_dict(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert from_dict({}) == RunConfig()


def test_flags_override_fields_of_the_repositorys_configs():
    module = importlib.import_module("configs.arithmetic_hard")
    changes = {"group_size": 32, "optimizer.base_lr": 1, "recipe.healthy": "none", "evaluation.sets.validation": "v"}
    arguments = [f"--config.{name}={value}" for name, value in changes.items()]
    left, values = read_config(["program", *arguments, f"--config={module.__file__}", "--workdir=w"])
    assert left == ["program", f"--config={module.__file__}", "--workdir=w"]
    built, expected = from_dict(values), module.get_config()
    for name, value in changes.items():
        expected = override(expected, name, value)
    assert built == expected and built.optimizer.base_lr == 1.0
    assert built.resolved().num_steps == built.max_compute // (32 * built.problems_per_batch)


@pytest.fixture
def config_file(tmp_path):
    """Writes a config file; what the command line spells from it and flags of its fields."""

    def spell(*arguments: str, body: str = "return RunConfig(evaluation=EvaluationConfig(sets={'a': 'a.jsonl'}))"):
        path = tmp_path / "c.py"
        imports = "from isocompute_jax.experiment.config import EvaluationConfig, RunConfig\n"
        path.write_text(f"{imports}def get_config():\n    {body}\n")
        left, values = read_config(["program", *arguments, f"--config={path}"])
        assert left == ["program", f"--config={path}"]
        return from_dict(values)

    return spell


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--config.seed", "3"], "seed", 3),
        (["-config.seed=0x10"], "seed", 16),
        (["--config.optimizer.base_lr=1e-3"], "optimizer.base_lr", 1e-3),
        (["--config.dtype=bfloat16"], "dtype", "bfloat16"),
        (["--config.service.recompute_cache"], "service.recompute_cache", True),
        (["--config.track.tensorboard=1", "--noconfig.track.tensorboard"], "track.tensorboard", False),
        (["--config.loss.chunk_tokens=64"], "loss.chunk_tokens", 64),
        (["--config.loss.chunk_tokens=64", "--config.loss.chunk_tokens=None"], "loss.chunk_tokens", None),
        (["--config.reward=http://h:1/a=b"], "reward.function", "http://h:1/a=b"),
        (["--config.reward.environment=A", "--config.reward.environment=B"], "reward.environment", ("A", "B")),
        (["--config.curriculum.pools=(0.1,)", "--config.curriculum.order=easy_to_hard"], "curriculum.pools", (0.1,)),
        (["--config.evaluation.sets.b=f=1"], "evaluation.sets", {"a": "a.jsonl", "b": "f=1"}),
        (["--config.evaluation.sets={}"], "evaluation.sets", {}),
        (["-config.reward.tasks.gym:x.y", "m:f"], "reward.tasks", {"gym:x.y": "m:f"}),
        (["--config.prompts.template_options.thinking=false"], "prompts.template_options", {"thinking": False}),
        (["--config.prompts.template_options.date=26 Jul"], "prompts.template_options", {"date": "26 Jul"}),
    ],
)  # fmt: skip
def test_a_flag_sets_a_field_of_its_type(config_file, arguments, field, value):
    config = config_file(*arguments)
    for name in field.split("."):
        config = getattr(config, name)
    assert config == value and type(config) is type(value)


def test_a_flagfile_has_fields_too(config_file, tmp_path):
    (tmp_path / "flags").write_text("--config.seed=5\n--config.group_size=4\n")
    config = config_file(f"--flagfile={tmp_path / 'flags'}")
    assert (config.seed, config.group_size) == (5, 4)


@pytest.mark.parametrize(
    "body",
    [
        "return RunConfig().editable()",
        "from ml_collections_of_old import config_dict".replace("_of_old", ".not_here"),
        "return type('ConfigDict', (), {'to_dict': dict, 'lock': dict})()",
    ],
)
def test_a_config_file_of_an_earlier_release_is_told_what_to_change(config_file, body):
    with pytest.raises(InputError, match=r"c.py:?\d* cannot be loaded: .*leave out .editable\(\) and what is imported"):
        config_file(body=body)


def test_a_config_file_returns_a_config(config_file):
    with pytest.raises(InputError, match=r"get_config returns a dict, and no RunConfig\(...\)"):
        config_file(body="return {}")


def test_override_replaces_one_field():
    changed = override(BASE, "optimizer.base_lr", 2)
    assert changed.optimizer == dataclasses.replace(BASE.optimizer, base_lr=2.0)
    assert isinstance(changed.optimizer.base_lr, float)
    assert override(changed, "optimizer.base_lr", BASE.optimizer.base_lr) == BASE
    assert override(BASE, "evaluation.sets.v", "p").evaluation.sets == {"v": "p"}
    assert override(BASE, "evaluation.sets", {"w": "q"}).evaluation.sets == {"w": "q"}
    assert BASE.evaluation.sets == {}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("grop_size", 4, "unknown config field config.grop_size: did you mean 'group_size'?"),
        ("optimizer.base_rl", 4.0, "unknown config field config.optimizer.base_rl: did you mean 'base_lr'?"),
        ("xyz", 4, "unknown config field config.xyz: config has: model, train_set"),
        ("loss.clip_dual", 3.0, "unknown config field config.loss.clip_dual: did you mean 'dual_clip'?"),
        ("group_size", 4.0, "config.group_size = 4.0: must be of type int"),
        ("group_size", True, "config.group_size = True: must be of type int"),
        ("optimizer.base_lr", "fast", "config.optimizer.base_lr = 'fast': must be of type float"),
        ("recipe.healthy", "hrd", "config.recipe.healthy = 'hrd': did you mean 'hard'?"),
        ("evaluation.sets", {"v": 1}, "config.evaluation.sets = {'v': 1}: must map names to files"),
        ("prompts.template_options", {"tools": []}, "config.prompts.template_options: 'tools' is not an option"),
        ("prompts.template_options", "thinking", "config.prompts.template_options = 'thinking': must map names to"),
    ],
)
def test_a_bad_override_is_named_as_in_a_file(field, value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        override(BASE, field, value)
    nested = value
    for name in reversed(field.split(".")):
        nested = {name: nested}
    with pytest.raises(InputError, match=re.escape(message)):
        from_dict(nested)


# --- asynchrony


@pytest.mark.parametrize(
    ("staleness", "asynchrony", "window", "updates_per_phase"),
    [(0, "in_flight", 1, 1), (0, "phases", 1, 1), (1, "phases", 1, 1), (3, "phases", 3, 3), (3, "boundary", 4, 1)],
)
def test_the_window_holds_k_batches_ahead_or_those_of_a_phase(staleness, asynchrony, window, updates_per_phase):
    config = dataclasses.replace(
        BASE, max_staleness=staleness, asynchrony=asynchrony, service=ServiceConfig(endpoints="h:1")
    ).resolved()
    assert (config.window, config.updates_per_phase) == (window, updates_per_phase)


@pytest.mark.parametrize("asynchrony", ["in_flight", "boundary"])
def test_sampling_while_updating_needs_a_service(asynchrony):
    config = dataclasses.replace(BASE, max_staleness=1, asynchrony=asynchrony)
    with pytest.raises(InputError, match=r"max_staleness = 1 .* needs service.endpoints: .* shares its devices"):
        config.resolved()
    override(config, "asynchrony", "phases").resolved()
    override(config, "service.endpoints", "host:1").resolved()


def test_a_ratio_from_the_sampler_is_not_corrected_twice():
    config = override(BASE, "loss.ratio_from", "sampler")
    with pytest.raises(InputError, match=r"loss\.correction_mode = 'truncate' would correct twice"):
        config.resolved()
    override(config, "loss.correction_mode", "off").resolved()


# --- steps


@pytest.mark.parametrize(
    ("n", "problems", "compute", "steps"), [(8, 8, 2**18, 4096), (16, 4, 64, 1), (16, 4, 127, 1), (3, 5, 100, 6)]
)
def test_steps_are_compute_over_rollouts_per_step_rounded_down(n, problems, compute, steps):
    config = dataclasses.replace(BASE, group_size=n, problems_per_batch=problems, max_compute=compute)
    assert config.rollouts_per_step == n * problems
    assert config.resolved().num_steps == steps


def test_a_config_resolves_to_itself_the_second_time():
    config = with_loss("easy", 0.0, 0.0).resolved()
    assert config.resolved() == config
