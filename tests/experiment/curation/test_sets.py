"""Sets are what their ranges say, and an empty one says what would not be; pictures and summary."""

import collections
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest

from isocompute_jax import curate as main
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation import curate as room
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import cut, mix, publish
from isocompute_jax.experiment.curation.record import Store, Survey
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import read_problems


def measured_problems(counts: dict[int, int], samples: int = 16) -> list[Problem]:
    """`counts[c]` problems that were solved c times out of `samples`, in an order of no meaning."""
    rates = [c / samples for c, number in counts.items() for _ in range(number)]
    rates = [rates[i] for i in np.random.default_rng(0).permutation(len(rates))]
    return [Problem(f"p{i}", f"{i}=", "1", "numeric", {f"avg@{samples}": rate}) for i, rate in enumerate(rates)]


@pytest.fixture
def cut_up(tmp_path, monkeypatch):
    """What follows from problems whose rates are given; returns the counts. Pictures are drawn where asked for."""
    draw = room.draw_pictures

    def call(problems, config, *, drawn=False):
        monkeypatch.setattr(room, "draw_pictures", draw if drawn else lambda *_: None)
        rates = np.array([problem.measured[f"avg@{config.samples}"] for problem in problems])
        rewards = np.arange(config.samples) < np.round(rates * config.samples)[:, None]
        found = Survey({problem.id: row for row, problem in enumerate(problems)}, b"")
        store = Store(tmp_path, identity={}, survey=found, samples=config.samples)
        store.rewards, store.known = rewards.astype(np.float32), np.ones_like(rewards)
        return publish(problems, store, tmp_path, source=RunConfig(model="none"), config=config)

    return call


def counts_of(path, samples=16) -> collections.Counter[int]:
    return collections.Counter(round(p.measured[f"avg@{samples}"] * samples) for p in read_problems(path))


def prompts(problems) -> set[str]:
    return {problem.prompt for problem in problems}


def test_sets_hold_what_lies_in_their_ranges_ends_included(cut_up, tmp_path):
    # Of 16: Hard is 0 and 1 (1/16 = 0.0625), Easy 5 to 9, Very easy 10 to 14.
    problems = measured_problems(dict.fromkeys(range(17), 4))
    counts = cut_up(problems, CurationConfig(sets=("easy", "hard", "very_easy"), validation_size=3))
    assert counts == {"easy": 20, "hard": 8, "very_easy": 20}
    for name, inside in {"easy": range(5, 10), "hard": range(2), "very_easy": range(10, 15)}.items():
        train, validation = (counts_of(tmp_path / name / f"{half}.jsonl") for half in ("train", "validation"))
        assert train + validation == dict.fromkeys(inside, 4)
        assert validation.total() == 3
    assert len(read_problems(tmp_path / "measured.jsonl")) == 17 * 4


def test_both_ends_belong_to_a_range_where_k_hits_them(cut_up):
    problems = measured_problems(dict.fromkeys(range(11), 4), samples=10)  # 0.3, 0.6 and 0.9 are rates
    counts = cut_up(problems, CurationConfig(samples=10, sets=("easy", "very_easy"), validation_size=2))
    assert counts == {"easy": 4 * 4, "very_easy": 4 * 4}


def test_training_and_validation_share_no_prompt(cut_up, tmp_path):
    problems = measured_problems({0: 40})
    repeated = [dataclasses.replace(problem, id=f"{problem.id}-again") for problem in problems[:20]]
    cut_up(problems + repeated, CurationConfig(sets=("hard",), validation_size=10))
    train, validation = (read_problems(tmp_path / "hard" / f"{half}.jsonl") for half in ("train", "validation"))
    assert len(train) + len(validation) == 60 and len(validation) >= 10
    assert not prompts(train) & prompts(validation)


def test_the_split_follows_from_the_seed(cut_up):
    config = CurationConfig(sets=("hard",), validation_size=5)
    problems = measured_problems({0: 20})
    [one, same, other] = [
        cut("hard", problems, dataclasses.replace(config, seed=seed))[1] for seed in (config.seed, config.seed, 1)
    ]
    assert one == same != other


def test_a_mixture_has_its_shares_and_keeps_the_halves_apart(cut_up, tmp_path):
    shares = {"easy": 0.25, "hard": 0.75}
    config = CurationConfig(mixtures={"quarter": shares}, validation_size=8)
    counts = cut_up(measured_problems({0: 68, 5: 40, 16: 7}), config)
    # Training: 60 Hard ones allow 80, which takes 20 of the 32 Easy ones. Validation: 8 Hard ones allow 10.
    solved = [counts_of(tmp_path / "quarter" / f"{half}.jsonl") for half in ("train", "validation")]
    assert solved == [{5: 20, 0: 60}, {5: 2, 0: 7}]
    assert counts["quarter"] == 89
    summary = json.loads((tmp_path / "curation.json").read_text())
    assert (summary["train"]["quarter"], summary["validation"]["quarter"]) == (80, 9)
    train = read_problems(tmp_path / "quarter" / "train.jsonl")
    assert [p.measured["avg@16"] for p in train[:20]] != [train[0].measured["avg@16"]] * 20  # shuffled


def test_a_mixture_of_ranges_that_meet_trains_on_nothing_that_is_held_out():
    """A rate of 0.6 is Easy and Very easy; each set is split on its own."""
    problems = measured_problems({5: 10, 6: 60, 7: 10}, samples=10)
    config = CurationConfig(samples=10, sets=("easy", "very_easy"), validation_size=20)
    easy = [p for p in problems if p.measured["avg@10"] <= 0.6]
    very_easy = [p for p in problems if p.measured["avg@10"] >= 0.6]
    splits = {"easy": cut("easy", easy, config), "very_easy": cut("very_easy", very_easy, config)}
    assert prompts(splits["easy"][0]) & prompts(splits["very_easy"][1])
    train, validation = mix({"easy": 0.5, "very_easy": 0.5}, splits, config)
    assert train and validation and not prompts(train) & prompts(validation)
    for half in (train, validation):
        assert len(prompts(half)) == len(half)


def test_train_size_limits_sets_and_mixtures(cut_up, tmp_path):
    mixtures = {"half": {"easy": 0.5, "hard": 0.5}}
    cut_up(measured_problems({0: 40, 5: 40}), CurationConfig(mixtures=mixtures, train_size=6, validation_size=4))
    for name in ("easy", "hard", "half"):
        assert counts_of(tmp_path / name / "train.jsonl").total() == 6


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_set_that_is_too_small_is_a_warning_that_names_it(cut_up, tmp_path, caplog, number):
    counts = cut_up(measured_problems({0: number, 16: 9}), CurationConfig(sets=("hard",), validation_size=6))
    assert counts == {"hard": number}
    assert f"set 'hard' has only {number} problems in range [0.0, 0.0625], 6 were asked for" in caplog.text
    sizes = [0, 0]
    for index, half in enumerate(("train", "validation")):
        path = tmp_path / "hard" / f"{half}.jsonl"
        sizes[index] = counts_of(path).total() if path.exists() else 0
    assert sizes == [number - number // 2, number // 2]


def test_enough_problems_are_no_warning(cut_up, caplog):
    cut_up(measured_problems({0: 20}), CurationConfig(sets=("hard",), train_size=10, validation_size=10))
    assert not caplog.records


def test_histogram_and_summary(cut_up, tmp_path):
    cut_up(measured_problems({0: 3, 5: 8, 16: 1}), CurationConfig(validation_size=2), drawn=True)
    assert (tmp_path / "histogram.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "histogram.svg").read_text()
    assert not list(tmp_path.glob(".histogram*"))
    summary = json.loads((tmp_path / "curation.json").read_text())
    assert summary["histogram"] == [3, 0, 0, 0, 0, 8, *[0] * 10, 1]
    assert summary["problems"] == 12 and summary["samples"] == 16
    assert summary["mean"] == pytest.approx((8 * 5 + 16) / 16 / 12)
    assert summary["in_range"] == {"easy": 8, "hard": 3}
    assert (summary["train"], summary["validation"]) == ({"easy": 6, "hard": 2}, {"easy": 2, "hard": 1})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sets": ("extremely_hard",)}, "pass@128 = 0: it needs 128 samples per problem, not 16"),
        ({"sets": ("medium",)}, "unknown set 'medium': known are easy, hard"),
        ({"sets": ("medium",)}, "--set=medium=LOW:HIGH makes one"),
        ({"ranges": {"medium": (0.6, 0.2)}}, "set 'medium': [0.6, 0.2] is no range of rates"),
        ({"ranges": {"medium": (0.6, 1.2)}}, "set 'medium': [0.6, 1.2] is no range of rates"),
        ({"ranges": {"../medium": (0.2, 0.6)}}, "set '../medium' cannot be a directory's name"),
        ({"ranges": {"completions": (0.2, 0.6)}}, "set 'completions' cannot be a directory's name"),
        ({"mixtures": {"easy": {"easy": 0.5, "hard": 0.5}}}, "mixture 'easy' has the name of a set"),
        ({"mixtures": {"m": {"easy": 0.5, "medium": 0.5}}}, "unknown set 'medium'"),
        ({"mixtures": {"m": {"easy": 0.5, "very_easy": 0.5}}}, "add them to the sets"),
        ({"mixtures": {"m": {"easy": 0.5, "hard": 0.6}}}, "must be above 0 and add up to 1"),
        ({"mixtures": {"m": {"easy": 1.5, "hard": -0.5}}}, "must be above 0 and add up to 1"),
    ],
)
def test_a_config_that_cannot_work_is_an_error(fields, message):
    with pytest.raises(InputError, match=re.escape(message)):
        CurationConfig(**fields)


def test_extremely_hard_is_never_solved_in_128(cut_up):
    problems = measured_problems({0: 6, 1: 5}, samples=128)
    config = CurationConfig(samples=128, sets=("extremely_hard", "hard"), validation_size=2)
    assert cut_up(problems, config) == {"extremely_hard": 6, "hard": 11}


def test_the_mixture_flag():
    assert main.parse_mixture("half=easy:0.5,hard:0.5") == ("half", {"easy": 0.5, "hard": 0.5})
    for text in ("half", "half=easy", "half=easy:much"):
        with pytest.raises(InputError, match="write NAME=SET:SHARE"):
            main.parse_mixture(text)


def test_the_set_flag():
    assert main.parse_set("middle=0.2:0.5") == ("middle", (0.2, 0.5))
    for text in ("middle", "middle=0.2", "middle=0.2:", "=0.2:0.5", "middle=0.1:0.2:0.3", "middle=nan:1"):
        with pytest.raises(InputError, match="write NAME=LOW:HIGH"):
            main.parse_set(text)


def test_a_set_with_thresholds_of_its_own_stands_beside_the_papers(cut_up, tmp_path):
    config = CurationConfig(sets=("hard",), ranges={"top": (0.9, 1.0), "hard": (0.0, 0.125)}, validation_size=2)
    assert cut_up(measured_problems(dict.fromkeys(range(17), 4)), config) == {"hard": 12, "top": 8}
    assert counts_of(tmp_path / "top" / "train.jsonl") + counts_of(tmp_path / "top" / "validation.jsonl") == {
        15: 4,
        16: 4,
    }
    summary = json.loads((tmp_path / "curation.json").read_text())
    assert summary["ranges"] == {"hard": [0.0, 0.125], "top": [0.9, 1.0]}


def test_an_empty_set_is_an_error_when_all_else_is_written(cut_up, tmp_path):
    config = CurationConfig(sets=("hard", "easy"), validation_size=2)
    problems = measured_problems({0: 6, 3: 5, 11: 4})
    (tmp_path / "easy").mkdir()
    (tmp_path / "easy" / "train.jsonl").write_text("of an earlier cut")
    with pytest.raises(InputError) as error:
        cut_up(problems, config, drawn=True)
    assert str(error.value).startswith(
        "set 'easy' is empty: none of 15 problems has avg@16 in [0.3, 0.6]; the nearest are at 0.1875 (5 problems) and "
        "at 0.6875 (4 problems), so 0.1875:0.6875 would hold some. Problems by how many of 16 samples were right: "
        f"0: 6, 3: 5, 11: 4 ({tmp_path}/histogram.png). Set thresholds with --set=NAME=LOW:HIGH"
    )
    assert len(read_problems(tmp_path / "measured.jsonl")) == 15
    assert len(read_problems(tmp_path / "hard" / "train.jsonl")) == 4
    assert (tmp_path / "histogram.png").exists() and (tmp_path / "pass_at_k.svg").exists()
    assert not (tmp_path / "curation.json").exists() and not (tmp_path / "easy" / "train.jsonl").exists()
    [wider] = re.findall(r"so ([\d.]+):([\d.]+) would", str(error.value))
    found = cut_up(problems, dataclasses.replace(config, ranges={"easy": tuple(map(float, wider))}))
    assert found == {"hard": 6, "easy": 9}


def test_what_would_hold_some_does_so_at_rates_that_are_no_short_decimals(cut_up):
    config = CurationConfig(samples=7, sets=("easy",), validation_size=1)
    with pytest.raises(InputError, match=re.escape("so 0.2857:0.7143 would hold some")):  # 2/7 and 5/7
        cut_up(measured_problems({2: 3, 5: 3}, samples=7), config)
    assert 0.2857 <= 2 / 7 and 5 / 7 <= 0.7143


def test_an_empty_mixture_is_an_error_that_names_its_parts(cut_up):
    config = CurationConfig(mixtures={"most": {"easy": 0.05, "hard": 0.95}}, validation_size=1)
    with pytest.raises(InputError, match=r"mixture 'most' is empty: .* \(easy 4, hard 1\)"):
        cut_up(measured_problems({0: 2, 5: 5}), config)


def test_pass_at_k_is_what_drawing_k_of_the_samples_gives(cut_up, tmp_path):
    """Against every choice of k of 6 samples, over 9 problems."""
    solved = {0: 3, 1: 2, 4: 3, 6: 1}
    cut_up(measured_problems(solved, samples=6), CurationConfig(samples=6, sets=("hard",), validation_size=1))
    summary = json.loads((tmp_path / "curation.json").read_text())
    for k in (1, 2, 4, 6):
        any_, all_ = [], []
        for count, number in solved.items():
            drawn = list(itertools.combinations([i < count for i in range(6)], k))
            any_ += [np.mean([any(choice) for choice in drawn])] * number
            all_ += [np.mean([all(choice) for choice in drawn])] * number
        assert summary["best@k"][str(k)] == pytest.approx(np.mean(any_))
        assert summary["worst@k"][str(k)] == pytest.approx(np.mean(all_))
    assert list(summary["best@k"]) == ["1", "2", "4", "6"]
    assert list(room.curves([1, 1])["best"]) == [1]
