"""The record and what fills it: every rollout exactly once whatever happens, and no more in memory than is out."""

import dataclasses
import gc
import json
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_sampler import SimulatedSampler
from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.experiment.curation import record as room
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.measure import measure
from isocompute_jax.experiment.curation.record import COUNTS, RolloutOrder, Store, survey
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Grading, PromptConfig, Prompts, RewardConfig, load_tokenizer, save_arithmetic_tokenizer

PROBLEMS = [Problem(f"p{i}", f"{i}+{i}=", "1", "numeric") for i in range(7)]
IDENTITY = {"seed": 0}


class Killed(BaseException):
    """Nothing catches it."""


class Sampler(SimulatedSampler):
    """Is killed after so many groups; counts how many are out, and how many exist."""

    def __init__(self, *arguments, life=10**9, **options):
        super().__init__(*arguments, **options)
        self.alive = weakref.WeakSet()
        self.most_out = self.most_alive = self.drawn = 0
        self._life = life

    def submit(self, requests, **lane):
        super().submit(requests, **lane)
        self.most_out = max(self.most_out, len(self.waiting))

    def completed(self, **lane):
        for group in super().completed(**lane):
            if self.drawn == self._life:
                raise Killed
            self.drawn += 1
            self.alive.add(group)
            self.most_alive = max(self.most_alive, len(self.alive))
            yield group
            del group


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    save_arithmetic_tokenizer(path)
    return load_tokenizer(path)


@pytest.fixture
def question(tokenizer):
    return RolloutOrder(Prompts(tokenizer, PromptConfig()), SamplingConfig(max_tokens=9), seed=0)


def draw(directory, question, samples, *, problems=PROBLEMS, keep=True, window=6, rounds=False, **options):
    """One call; returns the record and the sampler, which may have been killed."""
    sampler = Sampler(question.prompts.tokenizer, length=5, **options)
    config = CurationConfig(samples=samples, groups_in_flight=window, keep_completions=keep)
    found = survey(problems, question)
    with Store(directory, identity=IDENTITY, survey=found, samples=samples, keep_completions=keep) as store:
        grading = Grading(RewardConfig(), question.prompts.tokenizer.decode)
        try:
            measure(problems, store, sampler, question, config, grading=grading, rounds=rounds)
        except Killed:
            assert not store.known.all()
    return store, sampler


def rollouts(directory) -> dict[tuple[str, int], tuple]:
    """(problem, rollout) -> reward, length, truncated, as the record has it; each once."""
    found = {}
    for line in map(json.loads, (directory / COUNTS).read_text().splitlines()[1:]):
        for i, (reward, length) in enumerate(zip(line["rewards"], line["lengths"], strict=True)):
            key = line["problem"], line["first"] + i
            assert key not in found
            found[key] = reward, length, i in line["truncated"]
    return found


def texts(directory) -> dict[tuple[str, int], tuple]:
    """The same of the completions that were kept."""
    found = {}
    for path in (directory / "completions").glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            key = line["problem"], line["rollout"]
            assert key not in found
            found[key] = line["reward"], line["tokens"], line["finish_reason"] == "length"
            assert (line["text"].endswith("=1")) == (line["reward"] == 1)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer):
    """50 samples in one call, by a sampler that keeps the order."""
    directory = tmp_path_factory.mktemp("whole")
    question = RolloutOrder(Prompts(tokenizer, PromptConfig()), SamplingConfig(max_tokens=9), seed=0)
    draw(directory, question, 50, window=1000, ahead=1)
    return rollouts(directory)


def test_the_undisturbed_record(whole):
    assert whole.keys() == {(p.id, i) for p in PROBLEMS for i in range(50)}
    rewards = [reward for reward, _, _ in whole.values()]
    assert 0.2 < np.mean(rewards) < 0.8 and 0 < np.mean([cut for _, _, cut in whole.values()]) < 0.5


CALLS = st.tuples(st.integers(1, 50), st.integers(0, 12), st.integers(0, 300), st.booleans())


@settings(max_examples=10)
@given(st.lists(CALLS, max_size=6))
def test_kills_growth_and_torn_ends_change_nothing(whole, tokenizer, tmp_path_factory, calls):
    """Any calls with any k, killed after any number of groups; then bytes are missing at the end of the files."""
    directory = tmp_path_factory.mktemp("out")
    question = RolloutOrder(Prompts(tokenizer, PromptConfig()), SamplingConfig(max_tokens=9), seed=0)
    for samples, life, torn, rounds in calls:
        draw(directory, question, samples, life=life, rounds=rounds)
        counts = directory / COUNTS
        with open(counts, "ab") as file:
            file.truncate(max(0, counts.stat().st_size - torn))
        with open(directory / "completions" / "00000.jsonl", "ab") as file:
            file.write(b'{"problem": "p1", "roll')  # never finished; nor is there a line about it
    store, _ = draw(directory, question, 50)
    assert rollouts(directory) == whole == texts(directory)
    expected = np.array([[whole[p.id, i][0] for i in range(50)] for p in PROBLEMS])
    np.testing.assert_array_equal(store.rewards, expected)
    assert store.tokens == sum(length for _, length, _ in whole.values())
    assert store.truncated == sum(cut for _, _, cut in whole.values())


def test_what_is_there_is_not_drawn_again(question, tmp_path):
    draw(tmp_path, question, 32)
    assert draw(tmp_path, question, 32)[1].drawn == 0
    assert draw(tmp_path, question, 16)[1].drawn == 0
    assert draw(tmp_path, question, 80)[1].drawn == 3 * len(PROBLEMS)
    store, _ = draw(tmp_path, question, 20)
    assert store.known.shape == (7, 20) and store.known.all()
    first = {key: value for key, value in rollouts(tmp_path).items() if key[1] < 20}
    assert store.tokens == sum(length for _, length, _ in first.values())
    assert store.truncated == sum(cut for _, _, cut in first.values())


def test_what_is_out_and_what_is_in_memory_is_bounded_by_the_window(question, tmp_path):
    """The generator of the sampler is always ahead of nothing but the window; 16 times as many groups pass through."""
    problems = [Problem(f"p{i}", "1+1=", "1", "numeric") for i in range(80)]
    gc.collect()
    _, sampler = draw(tmp_path, question, 18, problems=problems, window=10)
    assert sampler.drawn == 160
    assert sampler.most_out == 10 and sampler.most_alive <= 2


@pytest.mark.parametrize(("rounds", "expected"), [(False, [4, 4, 4, 4, 3, 2, 1]), (True, [4, 3, 2, 1, 3, 2, 1])])
def test_servers_always_have_a_full_window_and_one_process_has_rounds(question, tmp_path, rounds, expected):
    seen = []

    class Watched(Sampler):
        def completed(self, **lane):
            for group in super().completed(**lane):
                seen.append(len(self.waiting) + 1)
                yield group

    config = CurationConfig(samples=16, groups_in_flight=4)
    found = survey(PROBLEMS, question)
    with Store(tmp_path, identity=IDENTITY, survey=found, samples=16) as store:
        grading = Grading(RewardConfig(), question.prompts.tokenizer.decode)
        measure(PROBLEMS, store, Watched(question.prompts.tokenizer), question, config, grading=grading, rounds=rounds)
    assert seen == expected
    assert not (tmp_path / "completions").exists()


def test_completions_go_on_in_another_file(question, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(room, "PART_BYTES", 4000)
    draw(tmp_path, question, 50, life=9)
    draw(tmp_path, question, 50)
    parts = sorted((tmp_path / "completions").iterdir())
    assert [path.name for path in parts] == [f"{i:05d}.jsonl" for i in range(len(parts))] and len(parts) > 3
    assert texts(tmp_path) == whole


def test_a_killed_call_leaves_no_completions_that_the_record_lacks(question, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(room, "PART_BYTES", 4000)
    draw(tmp_path, question, 50, life=9)
    (tmp_path / "completions" / "00007.jsonl").write_text("of a part that no line names\n")
    counts = (tmp_path / COUNTS).read_bytes().splitlines(keepends=True)
    (tmp_path / COUNTS).write_bytes(b"".join(counts[:4]))  # as a crash of the machine may leave it
    draw(tmp_path, question, 50)
    assert texts(tmp_path) == rollouts(tmp_path) == whole


def test_completions_may_be_taken_away_or_asked_for_later(question, tmp_path, whole):
    draw(tmp_path, question, 16, keep=False)
    draw(tmp_path, question, 32)
    kept = texts(tmp_path)
    assert kept.keys() == {(p.id, i) for p in PROBLEMS for i in range(16, 32)}
    (tmp_path / "completions" / "00000.jsonl").unlink()
    draw(tmp_path, question, 50)
    assert [path.name for path in (tmp_path / "completions").iterdir()] == ["00001.jsonl"]
    assert kept | texts(tmp_path) == {key: value for key, value in whole.items() if key[1] >= 16}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"problem": "p1", "asked"\n', r"counts.jsonl:3: not a line of this record \(.*delete the line"),
        ("[]\n", r"counts.jsonl:3: not a line of this record"),
        (None, r"counts.jsonl:3: not a line of this record \(.*there already"),
    ],
)
def test_a_broken_line_is_named(question, tmp_path, text, message):
    draw(tmp_path, question, 16, keep=False, life=1)
    path = tmp_path / COUNTS
    path.write_text(path.read_text() + (text or path.read_text().splitlines(keepends=True)[1]))
    with pytest.raises(InputError, match=message):
        draw(tmp_path, question, 16, keep=False)


def test_a_file_that_is_no_record_is_named(question, tmp_path):
    (tmp_path / COUNTS).write_text("id,solved\n")
    with pytest.raises(InputError, match=r"counts.jsonl:1: not a line of this record"):
        draw(tmp_path, question, 16)
    assert (tmp_path / COUNTS).read_text() == "id,solved\n"


@pytest.mark.parametrize("change", [{"problem_id": "other"}, {"step": 1}])
def test_a_group_that_nobody_asked_for_is_an_error(question, tmp_path, change):
    class Broken(Sampler):
        def completed(self, **lane):
            for group in super().completed(**lane):
                yield dataclasses.replace(group, **change)

    config = CurationConfig(samples=16)
    found = survey(PROBLEMS, question)
    with (
        Store(tmp_path, identity=IDENTITY, survey=found, samples=16) as store,
        pytest.raises(RunError, match="twice, or unasked"),
    ):
        grading = Grading(RewardConfig(), question.prompts.tokenizer.decode)
        measure(PROBLEMS, store, Broken(question.prompts.tokenizer), question, config, grading=grading, rounds=True)
    assert len((tmp_path / COUNTS).read_text().splitlines()) == 1
