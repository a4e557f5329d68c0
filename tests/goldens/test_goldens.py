"""The fit says of recorded, old and foreign sweeps what it said before: choices, verdicts, rewards and prices."""

from __future__ import annotations

import copy

import pytest

from tests.goldens import goldens

FAST = ("table_verl",)
"""The others are slow together."""


@pytest.fixture(scope="module")
def kept():
    return goldens.kept()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in goldens.cases()]
)
def test_the_fit_says_what_it_said(name, kept):
    same = kept["machine"] == goldens.machine()
    assert not list(goldens.moved(kept[name], goldens.made(name), same_machine=same))


def test_the_goldens_are_of_every_case_and_small(kept):
    assert list(kept) == [*goldens.cases(), "machine"]
    assert goldens.FILE.stat().st_size < 300_000


def places(found) -> list[str]:
    return [text.partition(":")[0] for text in found]


def test_what_moved_is_named(kept):
    old = kept["table_verl"]
    new = copy.deepcopy(old)
    new["asked"][0]["reward"] += 1e-8
    assert places(goldens.moved(old, new, same_machine=True)) == []
    new["asked"][0]["reward"] += 0.005
    new["asked"][0]["interval95"][0] -= 0.005
    assert places(goldens.moved(old, new, same_machine=True)) == ["/asked[0]/reward", "/asked[0]/interval95[0]"]
    assert places(goldens.moved(old, new, same_machine=False)) == []
    new["asked"][0]["reward"] += 0.01
    assert len(places(goldens.moved(old, new, same_machine=False))) == 1 + len(old["asked"][0]["cost"])
    new = copy.deepcopy(old)
    new["data"]["evaluations"] += 1
    for same_machine in (True, False):
        assert places(goldens.moved(old, new, same_machine=same_machine)) == ["/data/evaluations"]


@pytest.mark.parametrize(
    ("before", "now", "count"), [("clear", "open", 0), ("open", "no matter", 0), ("clear", "no matter", 1)]
)
def test_elsewhere_a_verdict_may_become_its_neighbour(kept, before, now, count):
    old, new = copy.deepcopy(kept["table_verl"]), copy.deepcopy(kept["table_verl"])
    old["asked"][0]["verdict"], new["asked"][0]["verdict"] = before, now
    assert len(places(goldens.moved(old, new, same_machine=False))) == count
    assert places(goldens.moved(old, new, same_machine=True)) == ["/asked[0]/verdict"]


def test_elsewhere_another_choice_may_be_advised_that_costs_next_to_nothing(kept):
    old = copy.deepcopy(kept["table_verl"])
    answer = old["asked"][0]
    other = next(iter(answer["cost"]))
    for cost, count in ((0.004, 0), (0.02, 1)):
        answer["cost"][other] = -0.004
        new = copy.deepcopy(old)
        now = new["asked"][0]
        now["cost"] = {name: each for name, each in answer["cost"].items() if name != other}
        now |= {"advised": other, "reward": answer["reward"]}
        now["cost"][answer["advised"]] = cost
        found = [text for text in goldens.moved(old, new, same_machine=False) if "before" in text and "n = " in text]
        assert len([text for text in found if text.startswith("/asked[0]: n")]) == count
