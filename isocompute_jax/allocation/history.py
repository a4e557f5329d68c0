"""What a run has seen, as `auto` reads it, of any trainer: two logs, or every rollout's reward in a file for each step.

    metrics.jsonl   a line a step: step, compute (rollouts spent after it), group_size, reward (their mean) and
                    zero_variance_share (groups without a signal)
    eval.jsonl      a line for each evaluation and set: step, compute, eval_set, samples (of each problem) and
                    solve_counts (for each problem in the order of the set, how many solved it, or the sum of rewards)

`step_line` and `evaluation_line` make such lines from rewards in [0, 1]; `read_logs` reads the two files, and
`read_dumps` a folder of STEP.jsonl, a row a rollout, as verl writes them. `decide` then asks the rule (`auto`), and
`answer` puts what it says into words.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.allocation.auto import Controller, states
from isocompute_jax.options import check, described, option
from isocompute_jax.records import metrics
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, EVAL, METRICS, read_lines

Line = Mapping[str, Any]
Rewards = Sequence[Sequence[float]]
"""For each problem the rewards of its rollouts."""

STEP_KEYS = ("step", "compute", "group_size", "reward", "zero_variance_share")
EVALUATION_KEYS = ("step", "compute", "samples")
SET = "validation"
"""What an evaluation set is called where nothing names it."""


@dataclasses.dataclass(frozen=True)
class Logs:
    """The lines of a run so far, in order of steps."""

    metrics: Sequence[Line]
    evaluations: Sequence[Line]
    first: Controller | None = None  # what a run that asks the rule itself began with; None: n of the first line


def step_line(*, step: int, compute: int, rewards: Rewards) -> dict[str, Any]:
    """The line of a training step from the rewards of its groups, [P] of [n].

    Args:
      step: its number, from 1.
      compute: rollouts spent on training after it.
      rewards: of each group; where sizes differ, n is the most frequent.
    """
    sizes = collections.Counter(len(group) for group in rewards)
    return {
        "step": step,
        "compute": compute,
        "group_size": sizes.most_common(1)[0][0],
        "problems_per_batch": len(rewards),
        "reward": float(np.mean([reward for group in rewards for reward in group])),
        "zero_variance_share": float(np.mean([np.ptp(group) == 0 for group in rewards])),
    }


def evaluation_line(*, step: int, compute: int, rewards: Rewards, name: str = SET) -> dict[str, Any]:
    """The line of an evaluation of one set from the rewards of its problems, [P] of [k], in an order that stays.

    Args:
      step: after which it was made; 0 is the base model.
      compute: rollouts spent on training until then.
      rewards: of each problem, equally many.
      name: of the set.

    Raises:
      InputError: problems have different numbers of samples.
    """
    sizes = {len(group) for group in rewards}
    if len(sizes) != 1:
        raise InputError(f"evaluation at step {step}: its problems have {sorted(sizes)} samples; give all equally many")
    counts, k = np.sum(rewards, axis=1), sizes.pop()
    line = {"step": step, "compute": compute, "eval_set": name, f"avg@{k}": metrics.avg_at_k(counts, k)}
    if np.isin(rewards, (0, 1)).all():  # of partial rewards no sample is right or wrong
        counts = counts.astype(np.int64)
        line |= {f"best@{k}": metrics.best_at_k(counts, k, k), f"worst@{k}": metrics.worst_at_k(counts, k, k)}
        line |= {"solve_rate_histogram": metrics.solve_rate_histogram(counts, k)}
    return line | {"problems": len(counts), "samples": k, "solve_counts": counts.tolist()}


def read_logs(run: pathlib.Path) -> Logs:
    """A folder with metrics.jsonl and eval.jsonl, of a run that may still be going.

    Raises:
      InputError: a line lacks what the rule reads; names file, line and column.
    """
    fixed, first = {}, None
    try:  # a run logs its n where that may change
        written = json.loads((run / CONFIG).read_text(encoding="utf-8"))
        fixed, config = {"group_size": written["group_size"]}, written.get("config", {})
        if config["schedule"]["group_size"] == "auto":  # a line without n is of the run of fixed n that it forks from
            fixed, first = {"group_size": 0}, Controller(config["group_size"], config["schedule"]["largest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    steps = [fixed | line for line in read_lines(run / METRICS, partial_last_line=True)]
    evaluations = read_lines(run / EVAL, partial_last_line=True)
    for name, lines, keys in ((METRICS, steps, STEP_KEYS), (EVAL, evaluations, EVALUATION_KEYS)):
        for number, line in enumerate(lines, 1):
            for key in keys:
                if not _is_number(line.get(key)):
                    raise InputError(f"{run / name}:{number}: {key} is {line.get(key)!r}, and a number is needed")
            counts = line.get("solve_counts")
            if name == EVAL and not (isinstance(counts, list) and counts and all(map(_is_number, counts))):
                raise InputError(
                    f"{run / name}:{number}: solve_counts must have, for each problem, how many samples solved it"
                )
    return Logs(steps, [{"eval_set": SET} | line for line in evaluations], first)


def read_dumps(training: pathlib.Path, evaluations: pathlib.Path | None, *, problem: str, reward: str) -> Logs:
    """Folders of STEP.jsonl, a row a rollout: what verl's `rollout_data_dir` and `validation_data_dir` hold.

    Rollouts of one problem are those of a step with the same `problem`, wherever they stand in its file; a step's C
    counts all rows up to it, so that no file may be missing. The order of an evaluation's problems is that of their
    texts, and so the same in all.

    Args:
      training: of steps 1, 2, ...
      evaluations: of the steps that were evaluated; None where there were none.
      problem: column that tells problems apart, such as the prompt.
      reward: column of the reward, in [0, 1].

    Raises:
      InputError: there is no such file, one is missing, or a row lacks a column.
    """
    files = _numbered(training)
    if not files:
        raise InputError(f"{training}: has no file 1.jsonl, 2.jsonl, ... of training steps")
    missing = sorted(set(range(1, max(files) + 1)) - set(files))
    if missing:
        raise InputError(f"{training}: {missing[0]}.jsonl is missing: C counts the rollouts of all steps")
    spent, lines = {0: 0}, []
    for step in sorted(files):
        groups = _groups(files[step], problem, reward)
        spent[step] = spent[step - 1] + sum(map(len, groups.values()))
        lines.append(step_line(step=step, compute=spent[step], rewards=list(groups.values())))
    evaluated = []
    for step, file in sorted(_numbered(evaluations).items() if evaluations else ()):
        if step not in spent:
            raise InputError(f"{file}: {training} has no {step}.jsonl: C at this evaluation is unknown")
        groups = _groups(file, problem, reward)
        rewards = [groups[name] for name in sorted(groups)]
        evaluated.append(evaluation_line(step=step, compute=spent[step], rewards=rewards))
    return Logs(lines, evaluated)


def decide(history: Logs, *, largest: int | None = None) -> tuple[list[str], Controller]:
    """What `auto` decided as the lines came, and its state after them, with n of batches that are begun now.

    n begins at that of the first line, and ends at 256, but where the run asked the rule itself. Steps of another n
    than the rule's do not count: a run that has not followed it yet is told the same again.

    Raises:
      InputError: there is no step, or evaluations are of other problems than the ones before.
    """
    if not history.metrics:
        raise InputError("the history has no step: the rule begins with the n of the first")
    found, said = history.first or Controller(int(history.metrics[0]["group_size"]), 256), []
    found = dataclasses.replace(found, largest=largest or found.largest)
    for now in states(found, history.metrics, history.evaluations):
        said += [now.decision] if now.group_size != found.group_size else []
        found = now
    return said, found


def judged(history: Logs) -> list[str]:
    """For each set, what it says of the held-out problems at odd places, which decide nothing: at first, and now."""
    sets, said = collections.defaultdict(list), []
    for line in history.evaluations:
        sets[line["eval_set"]].append(line)
    for name, lines in sets.items():
        if len(lines[0]["solve_counts"]) > 1:
            first, now = (metrics.halves(line["solve_counts"], line["samples"])[1] for line in (lines[0], lines[-1]))
            said.append(
                f"{name}, by the half of its problems that decides nothing: {first:.3f} at first, {now:.3f} now"
            )
    return said


def _numbered(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Step -> its file."""
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    return {int(file.stem): file for file in folder.glob("*.jsonl") if re.fullmatch(r"\d+", file.stem)}


def _groups(file: pathlib.Path, problem: str, reward: str) -> dict[str, list[float]]:
    """Problem -> rewards of its rollouts."""
    found: dict[str, list[float]] = {}
    for number, row in enumerate(read_lines(file), 1):
        if problem not in row or not _is_number(row.get(reward)):
            has = ", ".join(row)
            raise InputError(f"{file}:{number}: needs {problem!r} and a number {reward!r}, and has {has}")
        found.setdefault(str(row[problem]), []).append(float(row[reward]))
    if not found:
        raise InputError(f"{file}: has no row")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@described
@dataclasses.dataclass(frozen=True)
class Asked:
    """A run whose next n is asked for."""

    history: str = option(
        "", "Folder of a run: metrics.jsonl and eval.jsonl, or one STEP.jsonl for each step, a row a rollout."
    )
    evaluations: str = option("", "Folder of STEP.jsonl for each evaluation, where --history has such files of steps.")
    problem: str = option("input", "Column of such files that tells problems apart.")
    reward: str = option("score", "Column of such files that has the reward, in [0, 1].")
    largest: int | None = option(None, "Largest n that it comes to; by default the run's own, or 256.", low=2)

    def __post_init__(self) -> None:
        check(self, "--")


def answer(asked: Asked) -> str:
    """Every decision, how the run stands by what decided none, and n of the next batch, on a line each."""
    folder = pathlib.Path(asked.history)
    if not folder.is_dir():
        raise InputError(f"--history={asked.history}: there is no such folder")
    if (folder / METRICS).exists():
        history = read_logs(folder)
    else:
        evaluations = pathlib.Path(asked.evaluations) if asked.evaluations else None
        history = read_dumps(folder, evaluations, problem=asked.problem, reward=asked.reward)
    said, found = decide(history, largest=asked.largest)
    last = history.metrics[-1]
    where = f"after step {last['step']:,}, {last['compute']:,} rollouts"
    stays = "" if last["group_size"] != found.group_size else ", as in the last step"
    return "\n".join([*said, *judged(history), f"{where}: n = {found.group_size} for the next batch{stays}"])
