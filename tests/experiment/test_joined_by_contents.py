"""Files that a command joins are joined by what their rows hold: ids may be those of lines, alike in any two files.

Of rows with the same ids one column of one row is changed, to anything; every command that joins must see it.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.experiment.curation.evaluate import compare
from isocompute_jax.experiment.curation.record import RolloutOrder, survey
from isocompute_jax.experiment.inputs import contents_of, read_inputs
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import CONTENTS, curve_identity_of
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import PromptConfig, Prompts
from tests.experiment import builders

words = st.text("123+=", min_size=1, max_size=4)
rows = st.lists(st.tuples(words, words, st.dictionaries(words, words, max_size=1)), min_size=1, max_size=4)


def problems_of(found):
    return [
        Problem(f"test-{i}", prompt, answer, "arithmetic", extra=extra)
        for i, (prompt, answer, extra) in enumerate(found, 1)
    ]


@st.composite
def changed(draw):
    """Problems, and the same with another value in one column of one of them."""
    problems = problems_of(draw(rows))
    place, column = (
        draw(st.integers(0, len(problems) - 1)),
        draw(st.sampled_from(["prompt", "answer", "task", "extra"])),
    )
    one = problems[place]
    values = {"task": st.just("exact"), "extra": st.dictionaries(words, words, min_size=1, max_size=2)}
    value = draw(values.get(column, words).filter(lambda new: new != getattr(one, column)))
    return problems, [*problems[:place], dataclasses.replace(one, **{column: value}), *problems[place + 1 :]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    config = builders.make_inputs(tmp_path_factory.mktemp("joined"))
    return config, read_inputs(config)


def evaluation_of(problems):
    contents = {problem.id: problem.digest.hex() for problem in problems}
    return {"samples": 4, "solved_at": 1.0, "reward": "", "solved": dict.fromkeys(contents, 2), "contents": contents}


@given(pair=changed())
def test_two_evaluations(pair):
    ours, theirs = map(evaluation_of, pair)
    assert compare(ours, ours).problems == len(ours["solved"])
    with pytest.raises(InputError, match=f"1 of {len(ours['solved'])} problems with the same id differ"):
        compare(ours, theirs)


@given(pair=changed())
def test_a_record_of_measurements_and_the_problems_that_it_goes_on_with(inputs, pair):
    tokenizer = inputs[1].tokenizer
    order = RolloutOrder(Prompts(tokenizer, PromptConfig()), SamplingConfig(max_prompt_tokens=64), 0)
    ours, theirs = (survey(problems, order) for problems in pair)
    assert ours.rows == theirs.rows
    differ = [ours.digest(row) != theirs.digest(row) for row in ours.rows.values()]
    assert differ.count(True) == 1 and survey(pair[0], order) == ours


@given(pair=changed(), of=st.sampled_from(["train_set", "evaluation.sets.validation"]))
def test_a_run_and_what_it_goes_on_with_and_runs_of_one_fit(inputs, pair, of):
    config, whole = inputs

    def read(problems):
        if of == "train_set":
            return contents_of(config, dataclasses.replace(whole, problems=problems))
        return contents_of(config, dataclasses.replace(whole, evaluation_sets={"validation": problems}))

    ours, theirs, again = map(read, (*pair, list(pair[0])))
    assert ours == again and {name for name in ours if ours[name] != theirs[name]} == {of}
    backwards = read(pair[0][::-1])
    assert (backwards == ours) == (len(pair[0]) == 1)  # batches come in the order of rows
    one, other, same = (curve_identity_of({"group_size": 4, CONTENTS: found}) for found in (ours, theirs, again))
    assert one != other and one == same


@given(found=rows, rate=st.floats(0, 1))
def test_what_curation_adds_to_rows_changes_nothing(found, rate):
    for problem in problems_of(found):
        extra = {**problem.extra, "mean_reward": rate}
        measured = dataclasses.replace(problem, measured={"avg@16": rate}, extra=extra)
        assert measured.digest == problem.digest
