"""What pages and recipes say of planned costs is what docs/plans.json has, and that is what the formulas make of it."""

import json
import pathlib
import re

import pytest

from benchmarks import planned_costs, planned_texts

ROOT = pathlib.Path(__file__).parents[2]
PLANS = json.loads((ROOT / "docs/plans.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_every_case_has_been_compiled():
    cases = planned_costs.cases()
    assert list(PLANS) == list(cases)
    for name, case in cases.items():
        assert (PLANS[name]["config"], PLANS[name]["fields"]) == (case.config, case.fields), name
        assert PLANS[name]["figures"]["free"] >= 0, name


def test_texts_say_what_was_planned():
    """`python -m benchmarks.planned_costs --texts` would change nothing."""
    for path, text in planned_texts.texts(PLANS, ROOT).items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, path


@pytest.mark.parametrize("name", ["reproduce_n128", "scalerl_8b", "in_process", "gspo"])
def test_costs_are_what_the_formulas_make_of_the_compiled_programs(name):
    found = PLANS[name]
    case = planned_costs.cases()[name]
    cost = planned_costs.price_again(planned_costs.config_of(case), found["figures"])
    assert planned_costs.ends(cost.device_hours) == found["figures"]["device_hours"]
    assert {part.name for part in cost.parts} == set(found["figures"]["parts"])
    for part in cost.parts:
        assert planned_costs.ends(part.device_hours) == found["figures"]["parts"][part.name]


def test_no_cost_stands_in_a_page_or_a_recipe_by_hand():
    """A recipe's sentence, and hours in the pages of clusters and of the reproduction, are made by the command."""
    made = set(planned_texts.texts(PLANS, ROOT))
    for path in [*ROOT.glob("configs/*.py"), *ROOT.glob("configs/layouts/*.py")]:
        if "Cost, by its plan" in path.read_text(encoding="utf-8"):
            assert path.relative_to(ROOT).as_posix() in made
    for page in ("reproduce", "clusters"):
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        by_hand = planned_texts.BLOCK.sub("", text)
        assert not re.findall(r"\d[\d.,]* to \d[\d.,]* (?:device-)?hours", by_hand), page


def test_a_docstrings_sentence_is_replaced_and_what_follows_it_kept():
    old = (
        "Cost, by its plan (estimates): 1 to 2 H200-hours for 8 rollouts. It takes 75.3 of the 140\nGiB of each H200. "
        "Groups that are\nrefilled are paid for."
    )
    new = planned_texts._paragraph(old, PLANS["gspo"], PLANS["rloo_one_host"])
    sentence = planned_texts.cost_sentence(PLANS["gspo"])
    half = planned_texts.half_sentence(PLANS["rloo_one_host"])
    assert " ".join(new.split()) == f"{sentence} {half} Groups that are refilled are paid for."
    assert planned_texts._paragraph(new, PLANS["gspo"], PLANS["rloo_one_host"]) == new
    assert planned_texts._paragraph(new, PLANS["gspo"], None) != new


def test_ranges_are_written_as_in_plans():
    assert planned_texts.span([9.94, 12.3]) == "9.9 to 12"
    assert planned_texts.span([1234.5, 1234.6]) == "1,234 to 1,235"
    assert planned_texts.span([0.0, 0.0]) == "0"
