"""The answer on a terminal: few lines, plain words, and a sentence of its own for each kind of answer."""

from __future__ import annotations

import dataclasses
import re

import pytest

from isocompute_jax.fit.report.terminal import MOST_ANSWER, MOST_DATA, headline, tables
from isocompute_jax.fit.report.wording import TERMINAL_WIDTH, Rewards, amount, names
from tests.fit.report.results import END, KINDS, answered, put, result, rich, with_costs

WORDS_OF_THE_HOUSE = r"\b(tie|ties|tied|contradicted|established|replicates?|frontier|nan|None)\b"


def data_and_answer(text: str) -> tuple[list[str], list[str]]:
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("With up to"))
    return lines[:first], lines[first:]


def joined(found) -> str:
    return re.sub(r"\s+", " ", headline(found))


@pytest.mark.parametrize("name", [*KINDS, "rich"])
def test_few_lines_of_plain_words(name):
    text = headline(rich() if name == "rich" else result(name))
    data, answer = data_and_answer(text)
    assert 1 <= len(data) <= MOST_DATA and 1 <= len(answer) <= MOST_ANSWER
    assert max(map(len, text.splitlines())) <= TERMINAL_WIDTH
    assert not re.search(WORDS_OF_THE_HOUSE, text)
    assert "avg@4 (mean reward of 4 samples per problem)" in text


@pytest.mark.parametrize("budgets", [2, 4, 9])
def test_several_budgets_have_two_lines_each(budgets):
    found = result("six", budgets=tuple(2000.0 * 2**i for i in range(budgets)))
    _, answer = data_and_answer(headline(found))
    assert len(answer) <= MOST_ANSWER
    assert sum(line.startswith("With up to") for line in answer) == (budgets if budgets < 5 else 3)
    assert budgets < 5 or answer[-1] == "And 6 more budgets: --tables"


def test_names_of_any_length_fit():
    found = result("six")
    long = {each.configuration: dataclasses.replace(each.configuration, name="x" * 300) for each in found.curves}
    asked = tuple(
        dataclasses.replace(
            each, choices=tuple(dataclasses.replace(one, configuration=long[one.configuration]) for one in each.choices)
        )
        for each in found.asked
    )
    text = headline(dataclasses.replace(found, asked=asked))
    assert len(text.splitlines()) <= MOST_DATA + MOST_ANSWER and max(map(len, text.splitlines())) <= TERMINAL_WIDTH


def test_each_verdict_has_its_sentence():
    six = result("six")
    first, second, third = (each.configuration for each in six.curves[:3])
    clear = answered(six, verdict="clear", reason="")
    assert "Clear: every other n tried costs more than 0.01 of reward, with 95% certainty." in joined(clear)
    alike = answered(six, verdict="no matter", named=(first, second, third), cheapest=third, reason="")
    said = (
        "No matter: n = 4, 8 and 16 lie within 0.01 of the best (95% certain); n = 16 is the cheapest (fewest steps)."
    )
    assert said in joined(alike)
    alone = answered(six, verdict="no matter", reason="")
    assert "No matter: n = 16 will do: it is the best, or within 0.01 of it (95% certain)." in joined(alone)
    for reason, words in {
        "too noisy to tell": "too noisy to tell it from",
        "the data disagree": "seeds disagree",
        "one seed": "one seed each cannot tell",
        "not run this far": "not run as far as needed",
        "one configuration": "only n = 16 was tried",
    }.items():
        text = joined(answered(six, verdict="open", reason=reason))
        assert "Open: " in text and words in text
        assert ("--next=3 says which runs would settle it." in text) is (reason != "one configuration")


def test_the_plan_the_forecast_and_the_price_of_choosing_otherwise():
    six = result("six")
    choices = with_costs(six.asked[0], [0.0, 0.012, 0.0304, 0.04, 0.05, 0.061])
    choices = (choices[0], dataclasses.replace(choices[1], stop=37_000.0), *choices[2:])
    text = joined(answered(six, choices=choices))
    steps = choices[0].num_steps
    assert (
        f"With up to 131,000 rollouts: n = 16, {steps:,} steps of 8 problems x 16 rollouts, learning rate 0.00025."
        in text
    )
    assert re.search(
        r"Expect avg@4 of 0\.\d{3}: [\d.]+ to [\d.]+ for the mean of many such runs, [\d.]+ to [\d.]+ for", text
    )
    assert "Instead: n = 32 stopped at 37,000: 0.012 less; n = 8: 0.030; n = 64: 0.040;" in text
    assert "By budget: n = 4 below 29,500; 8 below 62,100; 16 above." in text
    early = answered(six, choices=(dataclasses.replace(choices[0], stop=40_000.0), *choices[1:]))
    assert "Stop at 40,000: more adds nothing." in joined(early)


def test_what_it_rests_on():
    assert "Inside the data, which reach 131,000; n tried: 4 to 128; one learning rate." in joined(result("six"))
    assert "; one seed." in joined(result("one_seed"))
    assert "on training problems" in joined(put(result("six"), held_out=False))
    assert "training reward only." in joined(put(result("two"), held_out=False))
    beyond = joined(result("six", budgets=(4 * END,)))
    assert "The data end at 131,000 rollouts, and this budget is 4.0 times that" in beyond
    far = result("six", budgets=(8 * END,))
    assert far.asked[0].advised.configuration.group_size == 128
    assert "128 is the largest n tried: larger may be better" in joined(far)


def test_equal_steps_and_what_varies_are_said():
    steps = joined(put(result("six"), equal="steps"))
    assert "All take equally many steps, so n and rollouts go together: a larger n is also a larger budget." in steps
    assert "Besides n, B (problems per step) varies too." in joined(result("thirty"))
    both = put(result("six"), varies=("group_size", "learning_rate", "kl_coef"))
    assert "Besides n, the learning rate, kl_coef vary too." in joined(both)
    assert "Rises, then falls: n = 4 and 8." in joined(result("falls"))


def test_what_was_left_out_is_said_with_count_and_cause():
    assert "3 of 51 rows were left out as without a number: a.csv:7; a.csv:9." in headline(result("two"))
    lines = headline(result("noisy")).splitlines()
    assert "2 of 31 runs were left out, why 2." in lines
    assert "3 of 31 runs were left out, why 3. (and 3 more: --tables)" in lines
    everything = tables(result("noisy"))
    assert all(f"{i} of 31 runs" in everything for i in range(2, 7))


def test_where_nothing_rose_no_n_is_advised():
    text = joined(result("flat"))
    assert "Nothing rose: no configuration gained more than 0.0080 of avg@4 (95% certain)." in text
    assert "no n is advised, because nothing rose" in text and "No rise: try longer runs" in text
    assert "Expect" not in text and "Instead" not in text and "By budget" not in text


def test_without_curves_there_is_no_forecast():
    text = joined(result("end_points"))
    assert re.search(
        r"The highest evaluation: 0\.\d{3} by n = \d+, seed \d, at 131,000 rollouts; part of that is luck", text
    )
    assert "No forecast: runs have one evaluation. Log ten or more along each run" in text
    assert "--next" not in text and "By budget" not in text


def test_runs_to_add_and_schedules():
    text = joined(dataclasses.replace(rich(), asked=rich().asked[1:]))
    said = "Next: 2 more runs of n = 32 up to 131,000; 1 run of n = 256 (not tried yet) up to 131,000, which lower the"
    assert said in text and "--next" not in text


def test_percent_and_small_ranges():
    text = joined(result("percent"))
    assert re.search(r"Expect avg@4 of \d\d\.\d%: ", text) and "within 1 point of it" in text
    assert text.count("points.") == 1
    small = Rewards.of((0.0, 1.0), span=0.004)
    assert small.value(0.0089) == "0.0089" and Rewards.of((0.0, 1.0), span=0.4).value(0.0089) == "0.009"
    unit = Rewards.of((0.0, 1.0), span=0.4)
    assert unit.interval((0.401, 0.449)) == "0.40 to 0.45" and unit.interval((0.401, 0.409)) == "0.401 to 0.409"
    assert [unit.difference(cost) for cost in (0.0123, 0.0304, 0.00311, 0.00001)] == ["0.012", "0.030", "0.0031", "0"]


@pytest.mark.parametrize(
    ("value", "text"), [(131_072, "131,000"), (12.5, "12.5"), (999.6, "1,000"), (5_600_000, "5.6 million")]
)
def test_amounts(value, text):
    assert amount(value) == text


def test_many_names_are_counted():
    every = [band.configuration for band in result("six").curves]
    assert names(every[:3]) == "n = 4, 8 and 16" and names(every) == "n = 4, 8, 16, 32 and 2 more"
    assert names(every[:2], "or") == "n = 4 or 8" and names(every[:1]) == "n = 4"
