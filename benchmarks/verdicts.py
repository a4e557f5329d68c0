"""`python -m benchmarks.verdicts`: how often verdicts are right, on simulated sweeps whose truth is known.

    python -m benchmarks.verdicts --studies=200                   # every question
    python -m benchmarks.verdicts --studies=40 --parts=gaps,same

n = 4, 16 and 64, 20 evaluations to C = 1M, Hill curves from 0.1. Runs of one n differ by a standard deviation of 0.015,
alike along the run; evaluations have noise of 0.005. Parts:

    gaps      ceilings that differ at random by up to 0.03: `clear` that truly costs more than 0.01 of reward
    gap       n = 16 is 0.05 higher: how often it is `clear`
    same      three identical curves of four seeds: how often they are `no matter`
    one_seed  the same with one seed each: how often one is `clear` (row 1 of the issue that asked for this)
    flat      curves that never rise, continuous or of k = 100 or 400 samples: a rise or a fall that is found, and the
              error of the expected reward
    found     a rise of three standard deviations of the noise, and a fall of four
    many      ten Hill curves of random ceilings: whether the 95% interval of many runs holds the truth
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from absl import flags

from benchmarks.harness import METRIC, long_table, told_table
from benchmarks.shared import names, percent, print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit import data_facts
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.frontier.answers import MATERIAL, DrawnSweep, answer
from isocompute_jax.fit.results import BudgetAnswer

STUDIES = flags.DEFINE_integer("studies", 200, "Simulated sweeps of each part.", lower_bound=1)
PARTS = flags.DEFINE_list("parts", [], "Which parts; all if absent.")

SIZES = (4, 16, 64)
BUDGET = 1e6
FIRST = 2e3
SEED_SD, NOISE, ALONG = 0.015, 0.005, 2.0
"""Standard deviations between runs and of evaluations; runs are alike over this length of ln C."""

Truth = Callable[[int, np.ndarray], np.ndarray]
"""(n, compute [E]) -> reward [E]."""


class Data(NamedTuple):
    """How a truth is measured."""

    seeds: int = 4
    evaluations: int = 20
    between: float = SEED_SD
    noise: float = NOISE
    samples: int = 0  # of a binomial evaluation in place of the noise; 0: none


def main() -> None:
    """Flags -> table."""
    print_head(("part", "what", "share or mean"), left=(0, 1))
    for part in names(PARTS, KNOWN) or KNOWN:
        rows: dict[str, list[float]] = {}
        for number in range(STUDIES.value):
            for what, value in KNOWN[part](np.random.default_rng([number, list(KNOWN).index(part)])).items():
                rows.setdefault(what, []).append(value)
        for what, values in rows.items():
            known = np.array(values)[np.isfinite(values)]
            shares = np.isin(known, (0.0, 1.0)).all()
            print_row(part, what, percent(known) if shares else f"{known.mean():+.4f} (sd {known.std():.4f})")


def simulate(truth: Truth, data: Data, rng: np.random.Generator) -> DrawnSweep:
    """The draws of a sweep that is measured so."""
    compute = np.concatenate([[0.0], np.geomspace(FIRST, BUDGET, data.evaluations)])
    at = np.log(compute[1:])
    alike = np.exp(-np.abs(at[:, None] - at) / ALONG) + 1e-9 * np.eye(len(at))
    root, rows = np.linalg.cholesky(alike), []
    for n in SIZES:
        for seed in range(data.seeds):
            apart = np.concatenate([[0.0], data.between * root @ rng.normal(size=len(at))])
            reward = truth(n, compute) + apart
            if data.samples:
                reward = rng.binomial(data.samples, np.clip(reward, 0, 1)) / data.samples
            else:
                reward = np.clip(reward + data.noise * rng.normal(size=len(compute)), 0, 1)
            rows.append({"group_size": n, "problems_per_batch": 8, "seed": seed, "compute": compute, METRIC: reward})
    return told_table(long_table(rows), METRIC, [BUDGET])


def told(sweep: DrawnSweep) -> BudgetAnswer:
    """The answer at the end of the data."""
    found = answer(sweep, BUDGET)
    assert found is not None
    return found


def rising(ceilings: dict[int, float]) -> Truth:
    """Hill curves from 0.1 to a ceiling for each n."""
    return lambda n, compute: hill(compute, 0.1, ceilings[n], 2e4, 1.0)


def gaps(rng: np.random.Generator) -> dict[str, float]:
    """Verdicts against what the advised truly costs."""
    truth = rising(dict(zip(SIZES, 0.5 + rng.uniform(-0.03, 0.03, 3), strict=True)))
    found = told(simulate(truth, Data(), rng))
    ends = {n: float(truth(n, np.array([BUDGET]))[0]) for n in SIZES}
    cost = max(ends.values()) - ends[found.advised.configuration.group_size]
    named = max(ends.values()) - min(ends[each.group_size] for each in found.named)
    return {
        "clear": found.verdict == "clear",
        "clear, and costs more than 0.01": float(cost > MATERIAL) if found.verdict == "clear" else np.nan,
        "no matter": found.verdict == "no matter",
        "no matter, and one named costs more than 0.01":
            float(named > MATERIAL) if found.verdict == "no matter" else np.nan,
        "mean cost of the advised": cost,
    }  # fmt: skip


def gap(rng: np.random.Generator) -> dict[str, float]:
    """A true gap of 0.05."""
    found = told(simulate(rising({4: 0.5, 16: 0.55, 64: 0.5}), Data(), rng))
    return {"n = 16 is clear": found.verdict == "clear" and found.advised.configuration.group_size == 16}


def same(rng: np.random.Generator, seeds: int = 4) -> dict[str, float]:
    """Identical curves."""
    found = told(simulate(rising(dict.fromkeys(SIZES, 0.5)), Data(seeds=seeds), rng))
    return {"no matter": found.verdict == "no matter", "clear": found.verdict == "clear"}


def one_seed(rng: np.random.Generator) -> dict[str, float]:
    """Identical curves of one seed each."""
    return same(rng, seeds=1)


def flat(rng: np.random.Generator) -> dict[str, float]:
    """Curves that stay at their first level."""
    samples, level = int(rng.choice([0, 100, 400])), float(rng.choice([0.01, 0.1, 0.4]))
    seeds, evaluations = int(rng.choice([1, 2, 4])), int(rng.choice([10, 20, 60]))
    data = Data(seeds, evaluations, 0.0 if samples else 0.005, 0.01, samples)
    sweep = simulate(lambda n, compute: np.full(len(compute), level), data, rng)
    rose, (_, most) = data_facts._gain(sweep)
    return {
        "a rise is found": rose,
        "a fall is found": any(data_facts._fell(sweep, k) for k in range(len(SIZES))),
        "expected less true reward": told(sweep).advised.reward - level,
        "upper bound of the gain": most,
    }


def found(rng: np.random.Generator) -> dict[str, float]:
    """Rises and falls just large enough to be seen."""
    noise = float(rng.choice([0.005, 0.02]))
    data = Data(seeds=2, between=0.0, noise=noise)

    def rise(n: int, compute: np.ndarray) -> np.ndarray:
        return 0.2 + 3 * noise * np.minimum(np.log1p(compute / FIRST) / np.log(500), 1)

    def fall(n: int, compute: np.ndarray) -> np.ndarray:
        late = np.clip((np.log(np.maximum(compute, 1)) - np.log(1e5)) / np.log(10), 0, 1)
        return hill(compute, 0.2, 0.5, 300.0, 2.0) - 4 * noise * late

    fell = simulate(fall, data, rng)
    return {
        "a rise is found": data_facts._gain(simulate(rise, data, rng))[0],
        "a fall is found in some n": any(data_facts._fell(fell, k) for k in range(len(SIZES))),
        "share of n in which it is found": float(np.mean([data_facts._fell(fell, k) for k in range(len(SIZES))])),
    }


def many(rng: np.random.Generator) -> dict[str, float]:
    """The interval of the mean of many runs, at each n's stop."""
    truth = rising(dict(zip(SIZES, 0.5 + rng.uniform(-0.1, 0.1, 3), strict=True)))
    choices = told(simulate(truth, Data(), rng)).choices
    true = [float(truth(each.configuration.group_size, np.array([each.stop]))[0]) for each in choices]
    held = [low <= value <= high for value, (low, high) in zip(true, (c.interval95 for c in choices), strict=True)]
    return {"the advised n's interval holds": held[0], "of a random n": held[int(rng.integers(len(held)))]}


KNOWN = {part.__name__: part for part in (gaps, gap, same, one_seed, flat, found, many)}

if __name__ == "__main__":
    app.run(main)
