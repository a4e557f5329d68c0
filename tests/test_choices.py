"""Unknown words never choose an algorithm: every closed choice of every public configuration, misspelt."""

import dataclasses
import importlib
import inspect
import pkgutil
import typing
from typing import Any

import jaxtyping
import pytest

import isocompute_jax
from isocompute_jax.options import choices_of
from isocompute_jax.records.errors import InputError

CONFIGURATIONS = ("Config", "Options", "Settings")
"""How the names of classes that a user fills in end."""
PLACEHOLDERS = {int: 2, float: 1.0, bool: False, str: "x"}
"""For fields without a default."""


def configurations() -> list[type]:
    """Every configuration dataclass of the package, where it is defined; mains and what needs vllm define none."""
    found = []
    for module in pkgutil.walk_packages(isocompute_jax.__path__, "isocompute_jax."):
        if module.name.count(".") == 1 or module.name.endswith("__main__") or "vllm" in module.name:
            continue
        for name, member in vars(importlib.import_module(module.name)).items():
            defined_here = inspect.isclass(member) and member.__module__ == module.name
            if defined_here and dataclasses.is_dataclass(member) and name.endswith(CONFIGURATIONS):
                found.append(member)
    return found


def choices() -> list[Any]:
    """(class, field, word) of every word that a closed choice knows."""
    found = []
    for cls in configurations():
        for name, hint in typing.get_type_hints(cls).items():
            words = [word for word in choices_of(hint) if isinstance(word, str)]
            found += [pytest.param(cls, name, word, id=f"{cls.__name__}.{name}={word}") for word in words]
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


@pytest.mark.parametrize(("cls", "name", "word"), choices())
def test_a_misspelt_word_is_refused_with_the_nearest(cls, name, word):
    with pytest.raises(InputError, match=f"did you mean '{word}'"):
        make(cls, **{name: word + word[-1]})


@pytest.mark.parametrize(("cls", "name", "word"), choices())
def test_a_known_word_is_no_unknown_one(cls, name, word):
    """Words may exclude each other; none is refused as unknown."""
    try:
        make(cls, **{name: word})
    except InputError as error:
        assert "known: " not in str(error)
