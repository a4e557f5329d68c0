"""`python -m benchmarks.prediction`: what each way to choose n costs, inside the data and beyond them.

    python -m benchmarks.prediction --studies=60                  # 60 of each of ten families
    python -m benchmarks.prediction --draw=development            # what the method's constants were chosen on
    python -m benchmarks.prediction --families=sigmoid,shifted,late,stretched,relaxed    # shapes of published curves

Simulated sweeps (`families`) have data to C = 1M; each method names an n for 1/8, 1, 2, 4 and 16 times that, and the
regret is the true reward of the best n less that of the named one; the tool may say to stop at the peak of a curve that
collapses. The last column is the tool's regret less the other's, paired by study, with its 95% interval. The last table
counts how often the verdict was `clear` or `no matter`, and the advised n truly cost more than 0.01 all the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from absl import flags

from benchmarks import families
from benchmarks.harness import METRIC, scipy_hill, studies_of_flags, study_flags, told_table
from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.frontier.answers import MATERIAL, answer
from isocompute_jax.fit.results import BudgetAnswer, Choice

study_flags(60, (*families.FAMILIES, *families.RAGGED))

TIMES = np.array([0.125, 1.0, 2.0, 4.0, 16.0])
NAMES = ("1/8 C", "1 C", "2 C", "4 C", "16 C")
NOW, FAR = 1, 3
"""Places of 1 C and 4 C in these."""
TOOL = "the tool"


def main() -> None:
    """Flags -> tables."""
    studies = [study for _, study in studies_of_flags()]
    regret: dict[str, list[np.ndarray]] = {}
    quality: list[Quality] = []
    for study in studies:
        told = answers(study)
        found = [each.advised for each in told]
        truth = study.truth(families.LAST * TIMES)
        best = truth.max(axis=0)
        chosen = np.array([study.named(advice.configuration.name) for advice in found])
        value = np.array([spent(study, advice) for advice in found])
        regret.setdefault(TOOL, []).append(best - value)
        for name, choice in rivals(study).items():
            regret.setdefault(name, []).append(best - truth[choice, range(len(TIMES))])
        low, high = np.array([advice.interval95 for advice in found]).T
        expected = np.array([advice.reward for advice in found])
        quality.append(
            Quality(
                held=(low <= value) & (value <= high),
                right=chosen == truth.argmax(axis=0),
                error=np.abs(expected - value),
                said_right=np.array([advice.best_share for advice in found]),
                said_regret=np.array([each.expected_regret for each in told]),
                clear=np.array([each.verdict == "clear" for each in told]),
                no_matter=np.array([each.verdict == "no matter" for each in told]),
                wrong=best - value > MATERIAL,
            )
        )
    family = np.array([study.family for study in studies])
    print_regret({name: np.array(rows) for name, rows in regret.items()}, family)
    print_quality(Quality(*map(np.array, zip(*quality, strict=True))), family)


class Quality(NamedTuple):
    """At each multiple of C: whether the interval held the reward, whether n was right, the error of the reward.

    And what the tool said of that beforehand: the share of draws with this n as the best, the expected regret, and its
    verdict. `wrong`: it lost more than `MATERIAL`.
    """

    held: np.ndarray
    right: np.ndarray
    error: np.ndarray
    said_right: np.ndarray
    said_regret: np.ndarray
    clear: np.ndarray
    no_matter: np.ndarray
    wrong: np.ndarray


def answers(study: families.Study) -> list[BudgetAnswer]:
    """What `python -m isocompute_jax.fit --budget=...` answers, without its report."""
    budgets = families.LAST * TIMES
    found = told_table(study.table(METRIC), METRIC, list(budgets))
    told = [answer(found, float(budget)) for budget in budgets]
    return [each for each in told if each is not None]


def spent(study: families.Study, advice: Choice) -> float:
    """True reward after the steps that were advised, which end at the peak of a curve that collapses."""
    assert advice.num_steps is not None
    steps = advice.num_steps * advice.configuration.rollouts_per_step
    return float(study.truth(np.array([steps], float))[study.named(advice.configuration.name), 0])


def rivals(study: families.Study) -> dict[str, np.ndarray]:
    """method -> [A] number of the configuration that it names."""
    count = len(study.group_sizes)
    predicted = np.array([scipy_hill(*curve)(families.LAST * TIMES) for curve in mean_curves(study)])
    return {
        "SciPy's Hill per curve": predicted.argmax(axis=0),
        "best so far": best_so_far(study),
        "largest n": np.full(len(TIMES), count - 1),
    }


def mean_curves(study: families.Study) -> list[tuple[np.ndarray, np.ndarray]]:
    """[K] of compute [P_k] and mean reward over seeds [P_k], where each n was evaluated."""
    seen = np.isfinite(study.per_seed[:, 0])
    return [(study.compute[own], rows[:, own].mean(axis=0)) for rows, own in zip(study.per_seed, seen, strict=True)]


def best_so_far(study: families.Study) -> np.ndarray:
    """[A] whose last evaluation up to each budget is the highest; before all of them the first to be evaluated."""
    found = []
    for budget in families.LAST * TIMES:
        last = [reward[compute <= budget][-1:] for compute, reward in mean_curves(study)]
        found.append(int(np.argmax([row[0] if len(row) else -np.inf for row in last])))
    return np.array(found)


def print_regret(regret: dict[str, np.ndarray], family: np.ndarray) -> None:
    """Mean regret by family at 1 C and at 4 C, over all families at each ask, and paired differences."""
    print(f"{len(family)} studies. Mean regret by family at 1 C / 4 C; over all families at each multiple of C\n")
    names = flags.FLAGS.families
    print_head(("method", *names, *NAMES, "tool less it, at 4 C"))
    for name, rows in regret.items():
        cells = ["{:.4f} / {:.4f}".format(*rows[family == f][:, [NOW, FAR]].mean(axis=0)) for f in names]
        cells += [f"{value:.4f}" for value in rows.mean(axis=0)]
        gap = regret[TOOL][:, FAR] - rows[:, FAR]
        error = 1.96 * gap.std(ddof=1) / np.sqrt(len(gap))
        cells.append("" if name == TOOL else f"{gap.mean():+.4f} ± {error:.4f}")
        print_row(name, *cells)


def print_quality(quality: Quality, family: np.ndarray) -> None:
    """Coverage of the tool's 95% interval of the advised n's reward, share of right n, error, and what it said."""
    by_family = {name: family == name for name in flags.FLAGS.families} | {"all": np.ones(len(family), bool)}
    holds = (f"interval holds: {name}" for name in NAMES)
    print()
    print_head(("family", *holds, "right n: 1 C", "4 C", "said: 1 C", "4 C", "said regret: 4 C", "error: 1 C", "4 C"))
    for name, rows in by_family.items():
        held, right, error, said, regret = (np.nanmean(part[rows], axis=0) for part in quality[:5])
        cells = [f"{share:.0%}" for share in (*held, *right[[NOW, FAR]], *said[[NOW, FAR]])]
        cells += [f"{value:.4f}" for value in (regret[FAR], *error[[NOW, FAR]])]
        print_row(name, *cells)
    print()
    for verdict, has in (("clear", quality.clear), ("no matter", quality.no_matter)):
        print_head(("family", *(f"{verdict}, wrong: {name}" for name in NAMES)))
        for name, rows in by_family.items():
            said, both = has[rows].sum(axis=0), (has & quality.wrong)[rows].sum(axis=0)
            print_row(name, *(f"{s} of {rows.sum()}, {w}" for s, w in zip(said, both, strict=True)))
        print()


if __name__ == "__main__":
    app.run(main)
