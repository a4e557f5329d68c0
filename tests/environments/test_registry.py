"""Environments by name: what is found, and what is refused with what to do."""

import pytest

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.registry import get_kind
from isocompute_jax.options import default_of
from isocompute_jax.records.errors import InputError

GAMES = "tests.environments.games"


@pytest.mark.parametrize(
    ("name", "runs", "deterministic", "takes_tokens"),
    [
        ("number_hunt", "inline", True, False),
        ("python", "process", False, False),
        (f"{GAMES}:Adder", "process", True, False),
        (f"{GAMES}:Forgetful", "process", False, False),
        (f"{GAMES}:Waiting", "loop", True, False),
        (f"{GAMES}:Tokens", "process", False, True),
    ],
)
def test_what_a_class_says_of_itself(name, runs, deterministic, takes_tokens):
    kind = get_kind(name)
    assert (kind.runs, kind.deterministic, kind.takes_tokens) == (runs, deterministic, takes_tokens)


def test_options_are_keywords_of_the_class():
    assert get_kind(f"{GAMES}:Adder", {"enough": 5}).make().enough == 5
    assert get_kind("number_hunt").stop == ("=",)
    assert len(get_kind("number_hunt", {"largest": 99}).problems(3, 0)) == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("number_hant", {}, "number_hunt"),
        ("games.py", {}, "games:Class"),
        (f"{GAMES}:", {}, "write package.module:class"),
        (f"{GAMES}:Addr", {}, "has no 'Addr'; its classes: .*Adder"),
        ("tests.environments.gamez:Adder", {}, "there is no module"),
        (f"{GAMES}:WithoutStep", {}, r"no method step; write def step\(self, text\)"),
        (f"{GAMES}:Abstract", {}, r"no method step; write def step\(self, text\)"),
        (f"{GAMES}:OtherStep", {}, r"step takes \(action\); write step\(self, text\)"),
        (f"{GAMES}:Adder", {"enoughs": 5}, "does not take its options .*enoughs"),
        (f"{GAMES}:Wrong", {}, "does not take its options"),
        (f"{GAMES}:math", {}, "is a module, not a class"),
        ("http://127.0.0.1:9", {}, "environment = 'http://127.0.0.1:9': known: 'number_hunt', 'python', "),
        ("verifiers:reverse", {}, "needs verifiers, which is not installed"),
    ],
)
def test_what_is_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        get_kind(name, options)


def test_a_number_to_find_that_cannot_be():
    with pytest.raises(InputError, match=r"largest = 100 must lie in 1 \.\. 99"):
        get_kind("number_hunt", {"largest": 100}).make()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("turns", 0, "turns = 0"),
        ("stop", ("",), "has an empty text"),
        ("stop", ("[=]",), "as one text: write several as"),
        ("deadline_s", 0.0, "must be above 0"),
        ("turn_credit", "step", "turn_credit"),
    ],
)
def test_fields_that_cannot_be(field, value, message):
    with pytest.raises(InputError, match=message):
        EnvironmentConfig(**{field: value})
    assert value != default_of(EnvironmentConfig.__dataclass_fields__[field])


def test_an_environment_that_makes_no_problems_says_so():
    with pytest.raises(InputError, match="makes no problems"):
        get_kind(f"{GAMES}:Waiting").problems(3, 0)


def test_a_stop_may_be_one_text_or_none():
    assert get_kind(f"{GAMES}:OneStop").stop == ("</move>",) and get_kind(f"{GAMES}:NoStop").stop == ()


def test_problems_of_another_kind_are_refused():
    with pytest.raises(InputError, match=r"gave \{.*\}, a dict; make Problem objects"):
        get_kind(f"{GAMES}:OneStop").problems(2, 0)
