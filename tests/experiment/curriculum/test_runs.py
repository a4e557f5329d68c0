"""Whole runs with a curriculum, beside a replay of their own rollouts, and ended and resumed."""

import dataclasses

import numpy as np
import pyarrow.parquet
import pytest

from isocompute_jax import learner, tasks
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig, LengthConfig, RunConfig, override
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.rollouts import by_id
from isocompute_jax.learner import LossConfig
from isocompute_jax.records import run_files
from isocompute_jax.sampling import TRAIN, InProcessSampler
from isocompute_jax.tasks import Grading, RewardConfig, graded, load_tokenizer, read_problems
from tests.experiment import builders
from tests.experiment.curriculum.builders import batches_of_grain
from tests.experiment.samplers import LaggingSampler, Makes, ShuffledSampler

DYNAMIC = CurriculumConfig(dynamic_sampling=True, max_sampled_batches=3.0)


def metrics_of(workdir):
    return run_files.read_lines(workdir / run_files.METRICS)


@pytest.fixture(scope="module")
def measured(base_run, tmp_path_factory) -> RunConfig:
    """`base_run` for 8 steps without evaluations, on problems that say how hard they are."""
    path = tmp_path_factory.mktemp("measured") / "train.jsonl"
    problems = read_problems(base_run.train_set)
    rated = [dataclasses.replace(problem, measured={"avg@16": i % 5 / 4}) for i, problem in enumerate(problems)]
    tasks.write_problems(path, rated)
    return dataclasses.replace(base_run, train_set=str(path), max_compute=64 * 8, evaluation=EvaluationConfig())


def recording(cls=InProcessSampler):
    """A class of samplers that keep the training groups that they yield."""
    groups = []

    class Recording(cls):
        def completed(self, *, lane=TRAIN):
            for group in super().completed(lane=lane):
                if lane == TRAIN:
                    groups.append(group)
                yield group

    return Recording, groups


def by_step(groups, config) -> list[list]:
    """Graded groups of each step, in the order of drawing."""
    problems = by_id(read_problems(config.train_set))
    steps: dict[int, list] = {}
    for group in graded(groups, problems, Grading(RewardConfig(), load_tokenizer(config.model).decode)):
        steps.setdefault(group.step, []).append(group)
    return [steps[number] for number in sorted(steps)]


def has_signal(group) -> bool:
    return len(set(group.rewards.tolist())) > 1


# --- dynamic sampling


@pytest.mark.slow
def test_dynamic_sampling_beside_a_replay_of_its_own_rollouts(measured, tmp_path):
    """Which problems each step drew and kept, C, and the history: from the drawn tokens and grain alone."""
    evaluation = EvaluationConfig(
        {"train": measured.train_set}, samples=2, k=1, points=1, first_compute=1024, max_problems=4
    )
    config = dataclasses.replace(measured, curriculum=DYNAMIC, max_compute=64 * 8 + 17, evaluation=evaluation)
    sampler, groups = recording()
    loop.train(config, tmp_path, make_sampler=Makes(sampler))
    steps, lines = by_step(groups, config), metrics_of(tmp_path)
    batches = batches_of_grain(16, 1, config.seed)
    left, spent, attempts, solves = [], 0, np.zeros(16, int), np.zeros(16, int)
    for step, (drawn, line) in enumerate(zip(steps, lines, strict=True)):
        assert spent + 64 <= config.max_compute
        if len(left) < 4:
            left = [next(batches)[0] for _ in range(16)]
        kept, names = 0, []
        while kept < 4 and len(names) < 12 and spent + 16 <= config.max_compute:
            left = left or [next(batches)[0] for _ in range(16)]
            place = left.pop(0)
            assert place not in names  # 16 problems, at most 12 a step: this seed puts nothing off
            names.append(place)
            group = drawn[len(names) - 1]
            spent += 16
            kept += has_signal(group)
            attempts[place] += 16
            solves[place] += int(group.rewards.sum())
        assert [group.problem_id for group in drawn] == [f"p{place}" for place in names]
        assert (line["sampled_groups"], line["kept_groups"], line["compute"]) == (len(names), kept, spent)
        assert line["step"] == step + 1
        # Rewards and shares are those of all that was sampled; what was trained on is what was kept.
        assert line["reward"] == pytest.approx(np.mean([group.rewards for group in drawn]))
        assert line["zero_variance_share"] == pytest.approx(1 - kept / len(names))
        tokens = learner.trained_lengths([group for group in drawn if has_signal(group)]) if kept else np.zeros(1)
        assert line["trained_tokens"] == tokens.sum()
    assert spent + 64 > config.max_compute or spent == lines[-1]["compute"]
    assert lines[-1]["tokens"] == sum(group.num_tokens for step in steps for group in step)
    assert any(line["refill_rounds"] > 1 for line in lines) and any(line["kept_groups"] == 4 for line in lines)
    table = pyarrow.parquet.read_table(tmp_path / run_files.HISTORY).to_pydict()
    assert table["attempts"] == attempts.tolist() and table["solves"] == solves.tolist()
    evaluations = run_files.read_lines(tmp_path / run_files.EVAL)
    assert evaluations[-1]["compute"] == spent and evaluations[-1]["epochs"] == spent / (16 * 16)


@pytest.mark.slow
def test_evaluations_follow_the_compute_that_was_spent(measured, base_run, tmp_path):
    """Each point is evaluated after the step that passes it; two in one step make one evaluation."""
    config = dataclasses.replace(
        measured,
        curriculum=DYNAMIC,
        max_compute=64 * 12,
        evaluation=dataclasses.replace(base_run.evaluation, points=6, first_compute=64),
    )
    loop.train(config, tmp_path)
    points = config.evaluation.compute_points(num_steps=12, rollouts_per_step=64)
    spent = [0, *(line["compute"] for line in metrics_of(tmp_path))]
    expected = {next(compute for compute in spent if compute >= point) for point in points if point <= spent[-1]}
    found = [line["compute"] for line in run_files.read_lines(tmp_path / run_files.EVAL)]
    assert sorted(set(found)) == sorted(expected | {spent[-1]})
    assert len(found) == 2 * len(set(found))  # two sets, once each


CASES = {
    "rests": {"curriculum": CurriculumConfig(retire_rate=0.05, retire_for="epoch", dynamic_sampling=True)},
    "stages": {
        "curriculum": CurriculumConfig(order="easy_to_hard", pools=(0.3,), stages=(0.5, 0.5), dynamic_sampling=True),
        "length": LengthConfig("all", 1, 2, 0.5, "mask"),
    },
    "mixture": {"curriculum": CurriculumConfig(weighting="adaptive", train_sets={"a": "", "b": ""})},
    "phases": {
        "curriculum": DYNAMIC,
        "asynchrony": "phases",
        "max_staleness": 2,
        "loss": LossConfig(kl_coef=0.0, entropy_coef=1e-3),
    },
}


def config_of(case: str, measured: RunConfig, path) -> RunConfig:
    config = dataclasses.replace(measured, **CASES[case])
    if config.curriculum.train_sets:
        problems = read_problems(measured.train_set)
        tasks.write_problems(path / "a.jsonl", problems[:6])
        tasks.write_problems(path / "b.jsonl", problems[6:])
        sets = {"a": str(path / "a.jsonl"), "b": str(path / "b.jsonl")}
        config = override(dataclasses.replace(config, train_set=""), "curriculum.train_sets", sets)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_that_dies_and_starts_again_ends_like_one_that_did_not(case, measured, tmp_path):
    """In the fourth step, within a phase of two, however groups arrive: logs, model, checkpoint, bit for bit."""
    config = dataclasses.replace(config_of(case, measured, tmp_path), max_compute=64 * 10, checkpoint_every_s=0.0)
    loop.train(config, tmp_path / "whole")

    def dies():
        raise KeyboardInterrupt

    below = config.problems_per_batch if config.curriculum.varies else 0
    with builders.before_step(4, dies), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "run", make_sampler=Makes(ShuffledSampler, round_below=below))
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", tmp_path / "whole")
    ours, theirs = ((tmp_path / name / run_files.HISTORY).read_bytes() for name in ("run", "whole"))
    assert ours == theirs
    assert sum(line["trained_tokens"] for line in metrics_of(tmp_path / "run")) > 0


# --- a window


@pytest.mark.slow
def test_dynamic_sampling_with_a_window_keeps_its_bound_and_its_books(measured, tmp_path):
    sampler, groups = recording(LaggingSampler)
    config = dataclasses.replace(
        override(override(measured, "service.endpoints", "nowhere:1"), "agreement.every", 0),
        curriculum=DYNAMIC,
        max_staleness=2,
        max_compute=64 * 16,
        evaluation=EvaluationConfig(),
    )
    made = Makes(sampler)
    loop.train(config, tmp_path, make_sampler=made)
    lines, steps = metrics_of(tmp_path), by_step(groups, config)
    assert [len(drawn) for drawn in steps] == [line["sampled_groups"] for line in lines]  # none lost, none too many
    spent = np.cumsum([16 * len(drawn) for drawn in steps]).tolist()
    assert [line["compute"] for line in lines] == spent and config.max_compute - 64 < spent[-1] <= config.max_compute
    for drawn, line in zip(steps, lines, strict=True):
        assert len({group.problem_id for group in drawn}) == len(drawn) <= 12
        assert line["kept_groups"] == sum(map(has_signal, drawn))
        assert line["staleness"] <= 2 and len(line["staleness_histogram"]) == 3
    assert max(line["staleness"] for line in lines) == 2 and any(line["refill_rounds"] for line in lines)
    assert all(not s._waiting[TRAIN] and not s._done[TRAIN] for s in made.samplers)


# --- retirement


@pytest.mark.slow
def test_a_retired_problem_is_not_drawn_again_and_a_run_of_none_ends(measured, tmp_path, caplog):
    """Problems that a random model solves now and then, retired at the first chance: the run is out of them early."""
    config = dataclasses.replace(
        measured, curriculum=CurriculumConfig(retire_rate=1e-3), problem_set_size=6, max_compute=64 * 30
    )
    sampler, groups = recording()
    with caplog.at_level("WARNING"):
        loop.train(config, tmp_path, make_sampler=Makes(sampler))
    steps, lines = by_step(groups, config), metrics_of(tmp_path)
    retired: set[str] = set()
    for drawn, line in zip(steps, lines, strict=True):
        names = {group.problem_id for group in drawn}
        assert not names & retired and len(names) == min(4, 6 - len(retired))
        retired |= {group.problem_id for group in drawn if group.rewards.any()}
        assert line["retired_problems"] == len(retired)
    assert len(retired) == 6 and lines[-1]["compute"] < config.max_compute
    assert (
        f"every problem is retired (config.curriculum.retire_rate = 0.001): the run ends at {lines[-1]['compute']}"
        in caplog.text
    )
    assert (tmp_path / run_files.DONE).exists()
    assert all(pyarrow.parquet.read_table(tmp_path / run_files.HISTORY)["retired"].to_pylist())


# --- order, mixtures, length


@pytest.mark.slow
def test_stages_and_columns_of_an_order(measured, tmp_path):
    curriculum = CurriculumConfig(order="easy_to_hard", pools=(0.3,), stages=(0.5, 0.5))
    loop.train(dataclasses.replace(measured, curriculum=curriculum), tmp_path)
    rates = [line["measured_rate"] for line in metrics_of(tmp_path)]
    assert min(rates[:4]) > 0.3 >= max(rates[4:])


@pytest.mark.slow
def test_columns_of_a_mixture(measured, tmp_path):
    config = config_of("mixture", measured, tmp_path)
    config = override(override(config, "curriculum.weighting", "fixed"), "curriculum.weights", {"a": 1, "b": 3})
    sampler, groups = recording()
    loop.train(config, tmp_path / "run", make_sampler=Makes(sampler))
    for line in metrics_of(tmp_path / "run"):
        of_sets = line["train_sets"]
        assert (of_sets["a"]["share"], of_sets["b"]["share"]) == (0.25, 0.75)
        assert 0.25 * of_sets["a"]["reward"] + 0.75 * of_sets["b"]["reward"] == pytest.approx(line["reward"])
    assert {group.problem_id.split("/")[0] for group in groups} == {"a", "b"}


def test_length_in_a_run_is_that_of_the_learner(measured, tmp_path):
    """One step: rewards in the log as graded, penalties and masks of its own rollouts, and credit from both."""
    length = LengthConfig("correct", overlong_tokens=1, overlong_penalty=0.5, truncated="mask")
    config = dataclasses.replace(measured, length=length, max_compute=64)
    sampler, groups = recording()
    with pytest.MonkeyPatch.context() as patch:
        credits, credit = [], learner.credit
        patch.setattr(learner, "credit", lambda *given, **named: credits.append(credit(*given, **named)) or credits[-1])
        loop.train(config, tmp_path, make_sampler=Makes(sampler))
    [line], [drawn] = metrics_of(tmp_path), by_step(groups, config)
    rewards = np.stack([group.rewards for group in drawn])
    long = np.array([[len(completion.tokens) == 2 for completion in group.completions] for group in drawn])
    cut = np.array([[completion.finish_reason == "length" for completion in group.completions] for group in drawn])
    assert line["reward"] == rewards.mean() and line["masked_share"] == cut.mean() > 0
    penalties = np.where((rewards == 1) & long, 0.5, 0)
    assert line["length_penalty"] == pytest.approx(penalties.mean())
    signal = np.array([has_signal(group) for group in drawn])
    expected = learner.group_advantages(rewards - penalties, signal, scale="group_std", baseline="group_mean")
    np.testing.assert_allclose(credits[-1].advantages, expected, rtol=1e-6)
    assert line["trained_tokens"] == (learner.trained_lengths(drawn) * ~cut * signal[:, None]).sum()
    # The history is kept without any curriculum, in the checkpoint and beside it.
    _, saved = builders.final_checkpoint(tmp_path)
    history, table = History.from_text(saved["history"], 16), pyarrow.parquet.read_table(tmp_path / run_files.HISTORY)
    assert history.attempts.sum() == 64 and history.solves.sum() == (rewards == 1).sum()
    assert table["attempts"].to_pylist() == history.attempts.tolist() and not any(table["retired"].to_pylist())
