"""History of any trainer: its lines by hand, folders of dumps, and what the command says of them."""

import json
import re

import numpy as np
import pytest

from isocompute_jax.allocation.auto import FIRST_STEPS, LEAST_STEPS, Controller, replay
from isocompute_jax.allocation.history import Asked, answer, decide, evaluation_line, read_dumps, read_logs, step_line
from isocompute_jax.records.errors import InputError


def write_rows(file, rewards, *, keys=("input", "score"), shuffled=None):
    """A row a rollout: of problem p, the rewards `rewards[p]`; a trainer may have mixed them (`shuffled`)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{keys[0]: f"problem {p}", keys[1]: reward, "output": "x"} for p, of in enumerate(rewards) for reward in of]
    order = range(len(rows)) if shuffled is None else shuffled.permutation(len(rows))
    file.write_text("".join(json.dumps(rows[i]) + "\n" for i in order))


def dumps(folder, *, steps, held_out, n=4, keys=("input", "score")):
    """Rewards that rise from none to all of one problem in two, and held-out ones that do not; evaluated at the end."""
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        groups = [[0] * (n - 1) + [1], [0] * n if step <= FIRST_STEPS else [1] * n]
        write_rows(folder / "train" / f"{step}.jsonl", groups, keys=keys, shuffled=rng)
    for step, solved in ((0, 1), (steps, held_out)):
        write_rows(folder / "validation" / f"{step}.jsonl", [[1] * solved + [0] * (8 - solved)] * 10, keys=keys)
    return folder


def test_lines_by_hand():
    line = step_line(step=3, compute=48, rewards=[[0, 1, 0, 0], [1, 1, 1, 1], [0.5, 0.5, 0.5]])
    assert line == {
        **{"step": 3, "compute": 48, "group_size": 4, "problems_per_batch": 3},
        **{"reward": pytest.approx(6.5 / 11), "zero_variance_share": pytest.approx(2 / 3)},
    }
    line = evaluation_line(step=3, compute=48, rewards=[[1, 0], [1, 1], [0, 0]], name="aime")
    assert line == {
        **{"step": 3, "compute": 48, "eval_set": "aime", "avg@2": 0.5, "best@2": pytest.approx(2 / 3)},
        **{"worst@2": pytest.approx(1 / 3), "solve_rate_histogram": [1, 1, 1]},
        **{"problems": 3, "samples": 2, "solve_counts": [1, 2, 0]},
    }
    with pytest.raises(InputError, match=r"evaluation at step 1: its problems have \[1, 2\] samples"):
        evaluation_line(step=1, compute=4, rewards=[[1], [1, 0]])


@pytest.mark.parametrize(
    ("steps", "held_out", "said"),
    [
        (LEAST_STEPS, 4, []),  # held-out reward gained 3/8 of the 1/2 that training reward did
        (LEAST_STEPS, 2, ["n 4 -> 8 at 256 rollouts: training reward has gained 0.375, held-out reward 0.125"]),
        (LEAST_STEPS - 1, 2, []),  # too early
    ],
)
def test_dumps_are_asked(tmp_path, steps, held_out, said):
    folder = dumps(tmp_path, steps=steps, held_out=held_out)
    history = read_dumps(folder / "train", folder / "validation", problem="input", reward="score")
    assert [line["compute"] for line in history.metrics] == [8 * step for step in range(1, steps + 1)]
    assert {line["group_size"] for line in history.metrics} == {4}
    assert [line["zero_variance_share"] for line in history.metrics] == [0.5] * steps
    found, controller = decide(history, largest=16)
    assert found == said and controller.group_size == (8 if said else 4)
    asked = Asked(history=str(folder / "train"), evaluations=str(folder / "validation"))
    stays = "" if said else ", as in the last step"
    last = f"after step {steps}, {8 * steps} rollouts: n = {8 if said else 4} for the next batch{stays}"
    *others, half, found = answer(asked).splitlines()
    assert (others, found) == (said, last)
    assert re.fullmatch(
        r"validation, by the half of its problems that decides nothing: 0\.\d+ at first, 0\.\d+ now", half
    )


def test_other_columns_and_what_a_run_did_not_follow_is_said_again(tmp_path):
    folder = dumps(tmp_path, steps=LEAST_STEPS, held_out=2, keys=("prompt", "acc"))
    asked = Asked(history=str(folder / "train"), evaluations=str(folder / "validation"), problem="prompt", reward="acc")
    assert answer(asked).endswith("after step 32, 256 rollouts: n = 8 for the next batch")
    write_rows(folder / "train" / "33.jsonl", [[0, 0, 0, 1]], keys=("prompt", "acc"))
    assert answer(asked).endswith("after step 33, 260 rollouts: n = 8 for the next batch")
    write_rows(folder / "train" / "34.jsonl", [[0, 0, 0, 1] * 2], keys=("prompt", "acc"))
    assert answer(asked).endswith("after step 34, 268 rollouts: n = 8 for the next batch, as in the last step")


def test_a_run_of_fixed_n_says_it_in_its_config(tmp_path):
    lines = [step_line(step=step, compute=8 * step, rewards=[[0, 1], [1, 0]]) for step in range(1, 4)]
    for line in lines:
        del line["group_size"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "eval.jsonl").touch()
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"metrics.jsonl:1: group_size is None"):
        read_logs(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"group_size": 2}))
    assert (
        answer(Asked(history=str(tmp_path)))
        == "after step 3, 24 rollouts: n = 2 for the next batch, as in the last step"
    )


@pytest.mark.parametrize("own", [0, LEAST_STEPS - 1])
def test_a_run_of_auto_is_told_what_it_decided_itself(tmp_path, own):
    """All of its lines, or those from `own` on; the others are of a run of fixed n that it forks from, and lack n."""
    line = {"reward": 0.1, "zero_variance_share": 1.0}  # a signal in no group
    steps = [{"step": step, "compute": 32 * step, **line} for step in range(1, 2 * LEAST_STEPS - 1)]
    steps[own:] = [line | {"group_size": 8} for line in steps[own:]]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    (tmp_path / "eval.jsonl").touch()
    schedule = {"group_size": "auto", "largest": 8 if own else 64}
    written = {"group_size": 8, "config": {"group_size": 8, "schedule": schedule}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    said, found = decide(read_logs(tmp_path))
    assert found == replay(Controller(8, schedule["largest"]), steps, ())
    assert [text[:9] for text in said] == ([] if own else ["n 8 -> 16"])
    assert decide(read_logs(tmp_path), largest=8) == ([], replay(Controller(8, 8), steps, ()))


def test_logs_are_read_while_a_run_writes_them(tmp_path):
    lines = [step_line(step=step, compute=8 * step, rewards=[[0, 0], [0, 0]]) for step in range(1, LEAST_STEPS + 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 33, "comp')
    assert answer(Asked(history=str(tmp_path))).splitlines() == [
        "n 2 -> 4 at 256 rollouts: 0% of groups have a signal, at a reward of 0.000",
        "after step 32, 256 rollouts: n = 4 for the next batch",
    ]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no file 1.jsonl, 2.jsonl, ... of training steps"),
        ({"train/1.jsonl": '{"input": "a", "score": 1}\n', "train/3.jsonl": "{}"}, "2.jsonl is missing"),
        (
            {"train/1.jsonl": '{"input": "a", "acc": 1}\n'},
            "train/1.jsonl:1: needs 'input' and a number 'score', and has",
        ),
        ({"train/1.jsonl": ""}, "train/1.jsonl: has no row"),
        ({"train/1.jsonl": '{"input": "a", "score": 1}\n', "validation/7.jsonl": "{}"}, "train has no 7.jsonl"),
        ({"train/metrics.jsonl": '{"step": 1}\n'}, "metrics.jsonl:1: compute is None, and a number is needed"),
        ({"train/metrics.jsonl": ""}, "the history has no step"),
        (
            {"train/metrics.jsonl": "", "train/eval.jsonl": '{"step": 1, "compute": 4, "samples": 2}\n'},
            "eval.jsonl:1: solve_counts must have",
        ),
    ],
)
def test_bad_history_is_one_sentence(tmp_path, files, message):
    for folder in ("train", "validation"):
        (tmp_path / folder).mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        answer(Asked(history=str(tmp_path / "train"), evaluations=str(tmp_path / "validation")))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert read_logs(tmp_path / "validation").metrics == []
