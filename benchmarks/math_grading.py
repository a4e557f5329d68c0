"""`python -m benchmarks.math_grading`: the task `math` and math-verify alone on the graded pairs, class by class.

Each half of tests/tasks/graded_pairs is one table: how many verdicts of a class agree, and how many wrong answers are
paid. math-verify runs as its README says (`parse`, then `verify(gold, answer)`), the gold answer in dollar signs. Both
run in a process that is killed when a pair takes longer than `--deadline_s`; "hung" counts these.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import statistics
import time

import numpy as np
from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.tasks import Grading, RewardConfig

_PAIRS = flags.DEFINE_string("pairs", "tests/tasks/graded_pairs", "Folder of the pairs.")
_DEADLINE_S = flags.DEFINE_float("deadline_s", 10.0, "Longest time of one pair.")


def verdicts(grader: str, pairs: list[dict]) -> tuple[list[bool], int, float]:
    """What a grader pays, how many pairs it did not finish, and the median milliseconds of a pair."""

    def group(text: str) -> RolloutGroup:
        tokens = np.array([*map(ord, text)], np.int32)
        return RolloutGroup("p", 0, tokens[:0], (Completion.drawn(tokens, np.zeros(1), np.zeros(1), "stop"),))

    engine = Grading(
        RewardConfig(function=grader, workers=1, deadline_s=_DEADLINE_S.value),
        lambda batch: ["".join(map(chr, ids)) for ids in batch],
    )
    paid, failures, seconds = [], 0, []
    with contextlib.closing(engine):
        for pair in pairs:
            start = time.perf_counter()
            graded = engine.submit(group(pair["completion"]), Problem(pair["id"], "", pair["gold"], "math")).result()
            seconds.append(time.perf_counter() - start)
            paid.append(bool(graded.rewards is not None and graded.rewards[0] == 1.0))
            failures += graded.reward_failures
    return paid, failures, 1e3 * statistics.median(seconds)


def main() -> None:
    """Flags -> tables."""
    for path in sorted(pathlib.Path(_PAIRS.value).glob("*.jsonl")):
        pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        print(f"\n{path.stem}\n")
        print_head(("class", "pairs", "math", "wrongly paid", "math-verify", "wrongly paid"))
        found = [verdicts(name, pairs) for name in ("math", "benchmarks.rewards:math_verify_alone")]
        classes = collections.Counter(pair["class"] for pair in pairs)
        for name in [*classes, "all"]:
            places = [i for i, pair in enumerate(pairs) if name in (pair["class"], "all")]
            cells = [name, str(len(places))]
            for paid, _, _ in found:
                agree = sum(paid[i] == pairs[i]["verdict"] for i in places)
                wrongly = sum(paid[i] and not pairs[i]["verdict"] for i in places)
                cells += [f"{agree / len(places):.1%}", str(wrongly)]
            print_row(*cells)
        for name, (_, failures, milliseconds) in zip(("math", "math-verify"), found, strict=True):
            print(f"{name}: {failures} hung or failed, {milliseconds:.1f} ms a pair (median, its process included)")


if __name__ == "__main__":
    app.run(main)
