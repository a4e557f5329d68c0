"""Options said once: checks, flags and --help of a dataclass whose fields carry their help."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import inspect
import json
import math
import pathlib
import subprocess
import sys
import typing
from collections.abc import Mapping
from typing import Any, Literal

import jaxtyping
import pytest
from absl import flags

from isocompute_jax.options import (
    bounds_of,
    check,
    choices_of,
    define_flags,
    described,
    flag_name,
    from_flags,
    help_of,
    option,
    unknown_word,
)
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import IDENTITY
from tests.test_choices import PACKAGE, configurations, make


def pairs(flag: str, texts: list[str]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in (text.split("=") for text in texts)}
    except ValueError:
        raise InputError(f"{flag}: {texts} is not of the form name=value") from None


def span(flag: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition("..")
    return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Options:
    engine: Literal["vllm", "jax"] = option(help="What draws.")
    port: int = option(0, "Port; 0 picks a free one.", low=0, high=65535, identity=False)
    length: int | None = option(None, "Longest, in tokens.", low=2)
    share: float | None = option(None, "Share of memory.", low=0, high=1)
    rate: float = option(1e-6, "Learning rate.")
    name: str = option("", "Name.")
    insecure: bool = option(False, "Without TLS.")
    mode: Literal["fast", "exact"] | None = option(None, "How.")
    k: Literal[1, 4] = option(1, "Samples.")
    targets: tuple[str, ...] = option((), "More columns.")
    budgets: tuple[float, ...] = option((), "Budgets.", flag="budget", low=1)
    fixed: Mapping[str, float] = option(help="Held.", default_factory=dict, parse=pairs)
    window: tuple[float, float] = option((0.0, 1.0), "Window.", parse=lambda flag, texts: tuple(map(float, texts)))
    spans: Any = option(None, "Span.", parse=span)
    hidden: int = option(3, "Not for users.", flag=None)

    def __post_init__(self) -> None:
        check(self, "--")


def parsed(*arguments: str, cls: type = Options) -> Any:
    values = flags.FlagValues()
    define_flags(cls, values)
    values(["program", *arguments])
    return from_flags(cls, values)


def test_flags_left_alone_keep_the_defaults():
    assert parsed("--engine=jax") == Options(engine="jax")


def test_every_kind_of_flag_arrives():
    found = parsed(
        "--engine=vllm", "--port=80", "--length=5", "--share=0.5", "--rate=2e-6", "--name=a", "--insecure",
        "--mode=exact", "--k=4", "--targets=a,b", "--budget=1e6,2", "--fixed=A=0.5,B=2", "--window=2,3", "--spans=1..4",
    )  # fmt: skip
    assert found == Options(
        engine="vllm", port=80, length=5, share=0.5, rate=2e-6, name="a", insecure=True, mode="exact", k=4,
        targets=("a", "b"), budgets=(1e6, 2.0), fixed={"A": 0.5, "B": 2.0}, window=(2.0, 3.0), spans=(1.0, 4.0),
    )  # fmt: skip


def test_what_is_given_empty_keeps_an_empty_default():
    assert parsed("--engine=jax", "--fixed=", "--spans=", "--targets=").fixed == {}


def test_given_values_replace_flags():
    values = flags.FlagValues()
    define_flags(Options, values, leave_out=("rate",))
    assert "rate" not in values
    values(["program", "--engine=jax"])
    assert from_flags(Options, values, rate=1.0).rate == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--engine is missing"),
        (("--engine=jax", "--budget=much"), "--budget: 'much' is not a number"),
        (("--engine=jax", "--budget=0.5"), "--budget = .* at least 1"),
        (("--engine=jax", "--fixed=A"), "--fixed: .*name=value"),
    ],
)
def test_a_bad_flag_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        parsed(*arguments)


@pytest.mark.parametrize("argument", ["--port=70000", "--length=1", "--share=2", "--mode=slow", "--engine=torch"])
def test_bounds_and_choices_are_held_while_parsing(argument):
    with pytest.raises(flags.IllegalFlagValueError, match=argument.partition("=")[0].strip("-")):
        parsed(argument)


def test_bounds_and_choices_are_held_in_a_library_too():
    for wrong in ({"port": -1}, {"port": math.nan}, {"length": 1}, {"share": 1.5}, {"budgets": (2.0, 0.0)}):
        with pytest.raises(InputError, match=f"--{next(iter(wrong)).removesuffix('s')} = "):
            Options(**({"engine": "jax"} | wrong))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="did you mean 'exact'"):
        Options(engine="jax", mode="exat")  # pyright: ignore[reportArgumentType]
    assert Options(engine="jax", mode=None).mode is None


def test_a_type_that_cannot_be_a_flag_is_refused():
    @dataclasses.dataclass
    class Nested:
        inner: dict[str, int] = option(help="No flag can hold it.", default_factory=dict)

    @dataclasses.dataclass
    class Deep:
        inner: Options = option(Options("jax"), "No flag can hold it.")

    for cls in (Nested, Deep):
        with pytest.raises(TypeError, match="cannot be a flag"):
            define_flags(cls, flags.FlagValues())


def test_fields_say_their_flag_help_and_identity():
    fields = {field.name: field for field in dataclasses.fields(Options)}
    assert flag_name(fields["budgets"]) == "budget" and flag_name(fields["hidden"]) is None
    assert help_of(fields["port"]) == "Port; 0 picks a free one."
    assert not fields["port"].metadata[IDENTITY] and fields["rate"].metadata[IDENTITY]


def test_help_says_what_a_field_was_told():
    @described
    @dataclasses.dataclass(frozen=True)
    class Told:
        """What is told.

        Further.
        """

        name: str = option(help="Of it.")
        plain: int = 3
        share: float = option(0.5, "Of memory.", low=0, high=1)
        options: Options = option(default_factory=Options)

    assert Told.__doc__ == (
        "What is told.\n\nFurther.\n\nAttributes:\n  name: Of it.\n"
        "  share: Of memory. (default 0.5; between 0 and 1)\n  options: see `Options`."
    )


def test_help_of_every_class_of_options_says_its_fields():
    """LossConfig's, say: a reader of the library has no --help."""
    configurations()  # imports every room
    rooms = [module for name, module in list(sys.modules.items()) if name.startswith("isocompute_jax")]
    members = {member for module in rooms for member in vars(module).values() if inspect.isclass(member)}
    found = [cls for cls in members if dataclasses.is_dataclass(cls) and any(map(help_of, dataclasses.fields(cls)))]
    assert {"LossConfig", "RunConfig", "Question"} <= {cls.__name__ for cls in found}
    for cls in found:
        for field in dataclasses.fields(cls):
            assert not help_of(field) or f"\n  {field.name}: " in (cls.__doc__ or ""), (cls, field.name)
        assert (cls.__doc__ or "").count("Attributes:") == 1, cls


def test_choices_of_types():
    assert choices_of(Literal["a", "b"]) == ("a", "b")
    assert choices_of(Literal["a"] | None) == ("a", None)
    assert choices_of(int) == choices_of(float | Literal["free"]) == ()


def test_the_nearest_known_word_is_told():
    assert "did you mean 'cispo'?" in unknown_word("--loss", "cipso", ["clipped", "cispo"])
    assert unknown_word("--loss", "zzz", ["a"]) == "--loss = 'zzz': known: 'a'"


def test_help_lists_the_flags_of_the_main_that_asked_for_them(tmp_path: pathlib.Path):
    (tmp_path / "main.py").write_text(
        "import dataclasses, sys\n"
        "from absl import app\n"
        "from isocompute_jax.options import define_flags, option\n"
        "@dataclasses.dataclass\n"
        "class Config:\n"
        "    port: int = option(7, 'Where it listens.', low=0)\n"
        "define_flags(Config)\n"
        "app.run(lambda _: None)\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "main.py", "--help"], capture_output=True, text=True, timeout=300)
    assert "--port: Where it listens." in done.stdout and "default: '7'" in done.stdout


def test_defaults_are_plain_data():
    values = flags.FlagValues()
    define_flags(Options, values)
    json.dumps({name: values[name].default for name in values})


# --- numbers

BEYOND = (math.inf, -math.inf, math.nan, -1, 0, 1e300, 2**63)
"""What every number of every configuration is tried at."""
ZERO = {
    "none, or off": "AgreementConfig.every AlarmsConfig.correction AlarmsConfig.entropy_collapse "
    "AlarmsConfig.entropy_explosion AlarmsConfig.evaluation AlarmsConfig.kl AlarmsConfig.ratio AlarmsConfig.truncation "
    "AnalysisOptions.bin_width AnalysisOptions.next BaseModelConfig.warmup_steps CheckpointsConfig.keep_best "
    "CheckpointsConfig.keep_every Constants.own Constants.slip Constants.wording Constants.wrong_spread "
    "CurationConfig.validation_size CurriculumConfig.retire_rate EngineSettings.lora_rank "
    "JaxSettings.lora_rank LawOptions.resamples LengthConfig.overlong_penalty LoraConfig.rank LossConfig.dual_clip "
    "LossConfig.entropy_coef LossConfig.entropy_target LossConfig.kl_coef ModelConfig.attention_chunk "
    "ModelConfig.experts_per_token ModelConfig.global_interval ModelConfig.norm_eps ModelConfig.num_experts "
    "OptimizerConfig.b1 OptimizerConfig.b2 OptimizerConfig.warmup_steps OptimizerConfig.weight_decay "
    "PackingConfig.row_tokens PlanConfig.curation_rollouts PlanConfig.sampler_devices PlanConfig.sigma "
    "QueryScaling.scale Question.warmup_steps RunConfig.export_every SamplingConfig.top_k ScheduleConfig.final_rate "
    "ScheduleConfig.most ScheduleConfig.noise_every ServerConfig.metrics_port SlurmOptions.gpus_per_node "
    "StockSettings.lora_rank ThinkingConfig.high ThinkingConfig.low TrackConfig.rollouts VllmSettings.lora_rank",
    "whatever there is, or what follows from other fields": "CurationConfig.train_size EnvironmentConfig.workers "
    "EvaluationConfig.first_compute EvaluationConfig.max_problems EvaluationConfig.points EvaluationConfig.samples "
    "EvaluationConfig.share LengthConfig.overlong_limit LengthConfig.overlong_tokens PilotConfig.rollouts "
    "PlanConfig.median_tokens PlanConfig.prompt_tokens PlanConfig.rollouts_in_flight Question.problem_set_size "
    "RewardConfig.workers RunConfig.learner_temperature RunConfig.problem_set_size "
    "SamplingConfig.max_rollouts_per_dispatch ServerConfig.max_client_groups ServerConfig.port SlurmOptions.mem_gb "
    "TrackConfig.rollouts_every",
    "a seed like others": "BaseModelConfig.seed BaseModelConfig.teacher_seed CurationConfig.seed "
    "LawOptions.seed Question.seed RunConfig.seed SplitOptions.seed",
    "at once, or after every step": "Limits.max_device_hours RunConfig.checkpoint_every_s ServerConfig.grace_s "
    "ServiceConfig.wait_s",
    "any at all is too much": "AgreementConfig.stop AgreementConfig.warn LossConfig.clip_high LossConfig.clip_low",
    "nothing moves": "BaseModelConfig.peak_lr Constants.gain LossConfig.entropy_coef_change "
    "LossConfig.entropy_coef_max Question.base_lr",
    "the lowest of a range": "AnalysisOptions.fix AnalysisOptions.window CurationConfig.ranges FitOptions.bounds "
    "FitOptions.fix FitOptions.r0 FitOptions.reward_range FitOptions.window LawOptions.reward_range "
    "LossConfig.correction_low ReadOptions.reward_range RopeScaling.low_frequency",
    "a reward like others": "CurationConfig.solved_at EvaluationConfig.solved_at",
    "an exponent of things that are all equal": "Constants.skill_exponent OptimizerConfig.lr_scaling_exponent",
    "on-policy": "RunConfig.max_staleness",
}
"""Meaning of 0 -> fields that may be it."""
NO_END = {math.inf: "no end", 1e300: "the same, as float32 has it"}
OTHER = {
    "CurationConfig.solved_at": {-1: "a reward like others"},
    "EvaluationConfig.solved_at": {-1: "a reward like others"},
    "LawOptions.reward_range": {-1: "a reward like others"} | NO_END,
    "ReadOptions.reward_range": {-1: "a reward like others"} | NO_END,
    "AnalysisOptions.window": NO_END,
    "LossConfig.clip_high": NO_END,
    "LossConfig.correction_high": NO_END,
    "FitOptions.window": NO_END | {2**63: "a compute like others"},
    "FitOptions.reward_range": {-1: "a reward like others", -math.inf: "no floor", 2**63: "a reward"} | NO_END,
    "FitOptions.huber_delta": {1e300: "least squares", 2**63: "least squares"},
    "FitOptions.tolerance": {2**63: "every asymptote counts as identified"} | NO_END,
}
"""Field -> meanings of other numbers. `FitOptions` has no options, and bounds of its own."""
NEEDED = {"PilotConfig": {"budget": 1 << 17}, "StockSettings": {"url": "http://localhost:1"}}
"""What a class that is left at its defaults is refused for."""


def with_options() -> set[type]:
    """Every configuration and every other class with options; mains, and what needs vllm, are not imported."""
    found = set(configurations())
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        if (
            file.parent != PACKAGE
            and file.name != "__main__.py"
            and "vllm" not in name
            and " option(" in file.read_text()
        ):
            members = vars(importlib.import_module(name)).values()
            classes = [member for member in members if inspect.isclass(member) and member.__module__ == name]
            found |= {cls for cls in classes if dataclasses.is_dataclass(cls) and "Attributes:" in (cls.__doc__ or "")}
    return found


def of_type(hint: Any, number: float) -> list[Any]:
    """Values of a type with the number in each place that holds one; none for types without numbers."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in (int, float):
        return [number]
    if parts == (float, float):
        return [(number, 1.0), (0.0, number)]
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return [{"A": value} for value in of_type(parts[1], number)]
    if origin is tuple:
        return [(value,) for value in of_type(parts[0], number)]
    return [] if origin is Literal else [value for part in parts for value in of_type(part, number)]


def test_a_number_has_a_meaning_or_is_refused_by_its_field(monkeypatch):
    """A field that is new is found, and wants bounds, or an entry above."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # or the types are refused before the values
    taken, tried = collections.defaultdict(set), 0
    for cls in with_options():
        for field in dataclasses.fields(cls):
            values = [(n, value) for n in BEYOND for value in of_type(typing.get_type_hints(cls)[field.name], n)]
            tried += bool(values)
            for number, value in values:
                try:
                    make(cls, **{**NEEDED.get(cls.__name__, {}), field.name: value})
                    taken[f"{cls.__name__}.{field.name}"].add(number)
                except InputError as error:
                    names = (field.name, flag_name(field) or field.name, "'A'")
                    assert any(name in str(error) for name in names), (cls, field.name, value, str(error))
    known = {name: {0} for names in ZERO.values() for name in names.split()}
    for name, meanings in OTHER.items():
        known[name] = known.get(name, set()) | set(meanings)
    assert taken == known
    assert tried > 200


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (dict(above=0), (1e-30, 1, 1e38), (0, -1, 1e-60, math.inf, math.nan, 1e39)),
        (dict(low=0, below=1), (0, 0.9999), (1, -1e-9, 1 - 1e-9, math.nan)),  # of which float32 makes 1
        (dict(above=0, high=1), (1e-30, 1), (0, 1 + 1e-9)),
        (dict(), (-1e38, 0, 2**63 - 1), (math.inf, -math.inf, math.nan, 1e39, 2**63)),
        (dict(above=0, finite=False), (math.inf, 1e300, 2.0), (math.nan, 0, -math.inf)),
    ],
)
def test_a_number_is_what_float32_makes_of_it(bounds, inside, outside):
    @dataclasses.dataclass(frozen=True)
    class Numbers:
        x: Any = option(0.5, "One.", **bounds)
        several: Any = option((), "Some.", **bounds)

        def __post_init__(self) -> None:
            check(self)

    for value in inside:
        assert Numbers(value, (0.5, value)).x == value
    for value in outside:
        for field, fields in (("x", {"x": value}), ("several", {"several": {"a": [0.5, value]}})):
            with pytest.raises(InputError, match=f"^Numbers.{field} = .* must be "):
                Numbers(**fields)


def test_bounds_in_words():
    found = [dict(above=0), dict(low=0, below=1), dict(above=0.5, high=1), dict(low=0, high=1), dict(high=3), dict()]
    assert [bounds_of(option(1.0, "Of it.", **each)) for each in found] == [
        "above 0", "at least 0 and below 1", "above 0.5 and at most 1", "between 0 and 1", "at most 3", "",
    ]  # fmt: skip
