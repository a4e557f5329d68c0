"""Schedules by hand, what they come to over a run, and what is refused."""

import json

import pytest

from isocompute_jax.allocation.schedule import BatchSize, Breakpoints, ScheduleConfig, from_leaders, optimal_group_sizes
from isocompute_jax.fit import analyze
from isocompute_jax.fit.outputs import summary_of
from isocompute_jax.records.errors import Field, InputError
from tests.fit.runs import BUDGETS, PROBLEMS, write_sweep

WHERE = Field("group_size", "config.schedule.")


def test_sizes_follow_compute():
    sizes = ScheduleConfig("4@0,8@64,16@100", problems_per_batch="2@0,4@96").sizes(99, 99)
    assert [sizes.at(compute) for compute in (0, 63, 64, 95, 96, 99, 100, 10**9)] == [
        *[BatchSize(2, 4)] * 2,
        *[BatchSize(2, 8)] * 2,
        *[BatchSize(4, 8)] * 2,
        *[BatchSize(4, 16)] * 2,
    ]


def walked(sizes, max_compute):
    """Sizes and steps one by one: a batch is begun if a whole one can be paid."""
    found, compute = [], 0
    while compute + sizes.at(compute).rollouts <= max_compute:
        found.append(sizes.at(compute))
        compute += found[-1].rollouts
    return found, compute


@pytest.mark.parametrize("schedule", ["4@0", "4@0,8@64,16@100", "4@0,32@10,4@50", "8@0,64@1000", "2@0,128@5"])
@pytest.mark.parametrize("max_compute", [0, 7, 8, 100, 333, 1000])
def test_segments_are_the_steps_of_a_run(schedule, max_compute):
    sizes = ScheduleConfig(schedule, problems_per_batch="2@0,3@40").sizes(1, 1)
    segments = list(sizes.segments(max_compute))
    steps, compute = walked(sizes, max_compute)
    assert [size for size, count in segments for _ in range(count)] == steps
    assert sum(size.rollouts * count for size, count in segments) == compute
    assert sizes.distinct(max_compute) == list(dict.fromkeys(steps))


@pytest.mark.parametrize(
    ("shape", "at_half", "at_end"),
    [
        ("constant", 1, 1),
        ("cosine", 0.55, 0.1),
        ("linear", 0.55, 0.1),
        ("wsd", 1, 0.1),
        ("1@0,0.5@500,0.3@900", 0.5, 0.3),
    ],
)
def test_rates_by_hand(shape, at_half, at_end):
    schedule = ScheduleConfig(rate=shape, final_rate=0.1, decay_share=0.2)
    factors = [schedule.rate_factor(compute, 1000) for compute in (0, 500, 1000, 1200)]
    assert factors == pytest.approx([1, at_half, at_end, at_end])


def test_wsd_falls_over_its_share():
    schedule = ScheduleConfig(rate="wsd", final_rate=0.0, decay_share=0.5)
    assert [schedule.rate_factor(compute, 100) for compute in (0, 50, 75, 100)] == pytest.approx([1, 1, 0.5, 0])


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("group_size", "4@0,8@100,16@50", "group_size = '4@0,8@100,16@50' goes back in C, from 100 to 50"),
        ("group_size", "4@0,8@0", "goes back in C, from 0 to 0"),
        ("group_size", "1@0,8@100", "group_size = '1@0,8@100': 1 must be at least 2"),
        ("group_size", "8@10", "begins at 10 rollouts: say what holds from 0 on"),
        ("group_size", "8, 16@10", "no list of VALUE@COMPUTE"),
        ("group_size", "4.5@0", "no list of VALUE@COMPUTE"),
        ("problems_per_batch", "0@0", "0 must be at least 1"),
        ("rate", "cosin", "did you mean 'cosine'"),
        ("rate", "1@0,nan@8", "nan must be at least 0"),
        ("decay_share", 0.0, "must be above 0"),
    ],
)
def test_what_is_refused(field, text, says):
    with pytest.raises(InputError) as raised:
        ScheduleConfig(**{field: text})
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_the_schedule_of_leaders_rises_halfway_and_never_falls():
    found = from_leaders([(100.0, 4), (400.0, 8), (1600.0, 4), (6400.0, 16)])
    assert found == Breakpoints((0, 200, 3200), (4, 8, 16))
    assert found.text == "4@0,8@200,16@3200"


def summary(path, sizes=(64, 64), advised=(4, 8), schema=3, **more):
    """What a fit of a sweep writes, as far as a schedule is read from it."""
    content: dict[str, object] = {"schema": schema, "inputs": [{"problem_set_size": size} for size in sizes]}
    content["optimal"] = {"budgets": [100.0, 400.0], "group_size": [float(n) for n in advised]}
    path.write_text(json.dumps(content | more))
    return path


def test_the_fit_of_a_sweep_is_a_schedule(tmp_path):
    found = optimal_group_sizes(summary(tmp_path / "summary.json"), WHERE, problem_set_size=64)
    assert found.text == "4@0,8@200"
    large = optimal_group_sizes(summary(tmp_path / "s.json", advised=(4, 10**8)), WHERE, problem_set_size=64)
    assert large.text == "4@0,100000000@200"


def test_without_n_of_c_its_answers_inside_the_data_are_the_schedule(tmp_path):
    grid = [
        {"budget": at, "choices": [{"group_size": n}, {"group_size": 2}]} for at, n in ((100, 8), (400, 8), (800, 16))
    ]
    path = summary(tmp_path / "summary.json", optimal=None, grid=grid, data={"span": [100, 400]})
    assert optimal_group_sizes(path, WHERE, problem_set_size=64).text == "8@0"


def test_a_summary_of_schema_2_is_read(tmp_path):
    rows = [{"compute": at, "group_size": n} for at, n in ((100.0, 4), (400.0, 8))]
    content = {"schema_version": 2, "frontier": {"budgets": rows}, "inputs": [{"problem_set_size": 64}]}
    (tmp_path / "summary.json").write_text(json.dumps(content))
    found = optimal_group_sizes(tmp_path / "summary.json", WHERE, problem_set_size=64)
    assert found.text == "4@0,8@200"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({}, r"of runs with 64 training problems, and this run has 65"),
        ({"compute_unit": "tokens"}, r"the budgets of .* are tokens, and a schedule's are rollouts"),
        ({"advised": (0, 8)}, "advises no fixed n; fit a sweep over group_size"),  # as of runs of auto alone
        ({"optimal": None}, r"is no summary\.json of a sweep"),  # as of a law
        ({"schema": 7}, "is of schema 7, and 2 and 3 are known here: fit the runs again"),
    ],
)
def test_what_is_no_schedule_is_refused_by_its_reason(tmp_path, content, says):
    with pytest.raises(InputError, match=says):
        optimal_group_sizes(summary(tmp_path / "summary.json", **content), WHERE, problem_set_size=65)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read .*: give the summary\.json of a fit"):
        optimal_group_sizes("", WHERE, problem_set_size=65)
    with pytest.raises(InputError, match="does not exist"):
        optimal_group_sizes(tmp_path / "other.json", WHERE, problem_set_size=65)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(InputError, match=r"is no summary\.json of a sweep"):
        optimal_group_sizes(tmp_path / "other.json", WHERE, problem_set_size=65)


@pytest.mark.slow
def test_the_schedule_of_what_a_fit_wrote_is_that_of_its_answers(tmp_path):
    result = analyze(write_sweep(tmp_path / "runs", seeds=2), questions=False)
    (tmp_path / "summary.json").write_text(json.dumps(summary_of(result), allow_nan=False))
    found = optimal_group_sizes(tmp_path / "summary.json", WHERE, problem_set_size=PROBLEMS)
    assert found.values[:3] == (2, 4, 8) and result.optimal is not None
    inside = [each for each in result.grid if each.budget <= BUDGETS[-1]]
    assert found.values[-1] == max(each.advised.configuration.group_size for each in inside)


def test_what_was_read_is_kept_when_the_file_changes():
    asked = ScheduleConfig("frontier:report/summary.json")
    began = asked.settled(Breakpoints((0, 9), (4, 8)))
    recorded = {"group_size": began.group_size, "source": began.source}
    assert began.text == "n frontier:report/summary.json"
    assert asked.as_recorded(recorded) == began
    assert asked.as_recorded({}) == asked
    assert began.as_recorded(recorded) == began
