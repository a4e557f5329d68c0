"""Unknown words never choose an algorithm: every closed choice of every public configuration, misspelt."""

import dataclasses
import functools
import importlib
import inspect
import pathlib
import re
import typing
from typing import Any

import jaxtyping
import pytest

import isocompute_jax
from isocompute_jax.options import choices_of
from isocompute_jax.records.errors import InputError

CONFIGURATIONS = ("Config", "Options", "Settings")
"""How the names of classes that a user fills in end."""
PACKAGE = pathlib.Path(isocompute_jax.__path__[0])
DEFINED = re.compile(rf"^class \w*({'|'.join(CONFIGURATIONS)})\b", re.M)
PLACEHOLDERS = {int: 2, float: 1.0, bool: False, str: "x"}
"""For fields without a default."""


@functools.cache
def configurations() -> list[type]:
    """Every configuration dataclass of the package, where it is defined; mains and what needs vllm define none.

    Only modules that define one are imported: all of them would bring W&B and schedulers' clients along.
    """
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if file.parent == PACKAGE or file.name == "__main__.py" or "vllm" in name:
            continue
        if DEFINED.search(file.read_text(encoding="utf-8")):
            members = vars(importlib.import_module(name)).values()
            classes = [member for member in members if inspect.isclass(member) and member.__module__ == name]
            found += [cls for cls in classes if dataclasses.is_dataclass(cls) and cls.__name__.endswith(CONFIGURATIONS)]
    return found


def choices() -> list[tuple[type, str, str]]:
    """(class, field, word) of every word that a closed choice knows."""
    found = []
    for cls in configurations():
        for name, hint in typing.get_type_hints(cls).items():
            found += [(cls, name, word) for word in choices_of(hint) if isinstance(word, str)]
    assert len(found) > 100
    return found


def make(cls: type, **values: Any) -> Any:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.default is field.default_factory is dataclasses.MISSING:
            values.setdefault(field.name, PLACEHOLDERS.get(hints[field.name]))
    return cls(**values)


def test_the_walk_finds_configurations_of_every_room():
    names = {cls.__name__ for cls in configurations()}
    assert names >= {"LossConfig", "CreditConfig", "RecipeConfig", "RunConfig", "ServiceConfig", "FitOptions"}


@pytest.fixture(autouse=True)
def annotations_unchecked(monkeypatch):
    """The suite's checks of annotations (see conftest) would refuse a word before the class does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def refusal(cls: type, name: str, word: str) -> str:
    """What is said to a word, or nothing."""
    try:
        make(cls, **{name: word})
    except InputError as error:
        return str(error)
    return ""


def test_a_misspelt_word_is_refused_with_the_nearest():
    said = {each: refusal(*each[:2], each[2] + each[2][-1]) for each in choices()}
    assert {each: text for each, text in said.items() if f"did you mean '{each[2]}'" not in text} == {}


def test_a_known_word_is_no_unknown_one():
    """Words may exclude each other; none is refused as unknown."""
    said = {each: refusal(*each) for each in choices()}
    assert {each: text for each, text in said.items() if "known: " in text} == {}
