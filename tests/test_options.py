"""Options said once: checks, flags and --help of a dataclass whose fields carry their help."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from absl import flags

from isocompute_jax.options import (
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
from tests.test_choices import configurations


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
