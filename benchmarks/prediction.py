"""`python -m benchmarks.prediction`: what each way to choose n costs, inside the data and beyond them.

    python -m benchmarks.prediction --studies=60                  # 60 of each of seven families
    python -m benchmarks.prediction --draw=development            # what the method's constants were chosen on

Simulated sweeps (`families`) have data to C = 1M; each method names an n for 1, 2, 4 and 16 times that, and the regret
is the true reward of the best n less that of the named one. The last column is the tool's regret less the other's,
paired by study, with its 95% interval.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import scipy.optimize
from absl import flags

from benchmarks import families
from isocompute_jax import app
from isocompute_jax.fit.curves.falls import Fall, find_fall
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.envelope import frontier
from isocompute_jax.fit.frontier.forecast import Forecast, forecast
from isocompute_jax.fit.results import Configuration, CurveFit

STUDIES = flags.DEFINE_integer("studies", 60, "Studies of each family.")
DRAW = flags.DEFINE_enum("draw", "test", ["development", "test"], "Which studies are drawn.")

TIMES = np.array([1.0, 2.0, 4.0, 16.0])
TOOL = "forecast (default)"


def main() -> None:
    """Flags -> tables."""
    draw: families.Draw = DRAW.value  # pyright: ignore[reportAssignmentType]
    studies = [families.simulate(f, draw, i) for f in families.FAMILIES for i in range(STUDIES.value)]
    ends = [falls(study) for study in studies]
    fits = fitted(studies, ends)
    regret: dict[str, list[np.ndarray]] = {}
    held, right, error = [], [], []
    for study, own, ended in zip(studies, fits, ends, strict=True):
        truth = study.truth(families.LAST * TIMES)
        found = forecast_of(study, own, ended)
        draws = np.stack([found.rewards(c) for c in families.LAST * TIMES], axis=-1)
        mean = draws.mean(axis=0)
        alive = np.array([fall is None for fall in ended])
        chosen = np.where(alive[:, None] | ~alive.any(), mean, -np.inf).argmax(axis=0)
        for name, choice in {TOOL: chosen, **rivals(study, own)}.items():
            regret.setdefault(name, []).append(truth.max(axis=0) - truth[choice, range(len(TIMES))])
        picked = [draws[:, k, i] for i, k in enumerate(chosen)]
        value = truth[chosen, range(len(TIMES))]
        low, high = np.percentile(picked, (2.5, 97.5), axis=1)
        held.append((low <= value) & (value <= high))
        right.append(chosen == truth.argmax(axis=0))
        error.append(np.abs(mean[chosen, range(len(TIMES))] - value))
    family = np.array([study.family for study in studies])
    print_regret({name: np.array(rows) for name, rows in regret.items()}, family)
    print_quality(np.array(held), np.array(right), np.array(error), family)


def fitted(studies: Sequence[families.Study], ends: Sequence[Sequence[Fall | None]]) -> list[list[CurveFit]]:
    """The Hill fit of every curve up to its peak, in one batch."""
    compute = [study.compute for study in studies for _ in study.group_sizes]
    reward = [row for study in studies for row in study.per_seed.mean(axis=1)]
    use = [mask for study, ended in zip(studies, ends, strict=True) for mask in rising(study, ended)]
    flat = iter(fit_curves(compute, reward, use=use, options=FitOptions()))
    return [[next(flat) for _ in study.group_sizes] for study in studies]


def configurations(study: families.Study) -> list[Configuration]:
    """One for each n."""
    return [Configuration(f"n = {n}", int(n), 32, 1024) for n in study.group_sizes]


def falls(study: families.Study) -> list[Fall | None]:
    """Curves that the tool ends at their peak, and does not choose beyond it."""
    return [find_fall(study.compute, row, reward_range=(0.0, 1.0)) for row in study.per_seed.mean(axis=1)]


def rising(study: families.Study, ended: Sequence[Fall | None]) -> list[np.ndarray]:
    """[K] of [E] bool, the evaluations up to each curve's peak."""
    return [study.compute <= (np.inf if fall is None else fall.compute) for fall in ended]


def forecast_of(study: families.Study, fits: Sequence[CurveFit], ended: Sequence[Fall | None]) -> Forecast:
    """What the tool sees beyond the data."""
    count = len(study.group_sizes)
    return forecast(
        [study.compute] * count,
        list(study.per_seed.mean(axis=1)),
        configurations(study),
        use=rising(study, ended),
        noise=[fit.noise for fit in fits],
        correlation=[fit.correlation for fit in fits],
    )


def rivals(study: families.Study, fits: Sequence[CurveFit]) -> dict[str, np.ndarray]:
    """method -> [A] number of the configuration that it names."""
    mean, count = study.per_seed.mean(axis=1), len(study.group_sizes)
    predicted = np.array([scipy_hill(study.compute, row)(families.LAST * TIMES) for row in mean])
    return {
        "SciPy's Hill per curve": predicted.argmax(axis=0),
        "best so far": np.full(len(TIMES), mean[:, -1].argmax()),
        "largest n": np.full(len(TIMES), count - 1),
        "n*(C) law": law(study, fits),
    }


def scipy_hill(compute: np.ndarray, reward: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """`curve_fit` of a Hill curve, the better of two starts."""

    def curve(c: np.ndarray, low: float, high: float, middle: float, steepness: float) -> np.ndarray:
        return hill(c, low, high, float(np.exp(middle)), steepness)

    best, found = np.inf, None
    bounds = ([0, 0, 0, 0.1], [1, 1, np.log(1e9), 10])
    for middle in np.log(compute[-1] / np.array([10, 2])):
        start = [np.clip(reward[0], 0.01, 0.98), min(0.97, reward.max() + 0.02), middle, 1.0]
        try:
            with warnings.catch_warnings(action="ignore"):
                values, _ = scipy.optimize.curve_fit(curve, compute, reward, p0=start, bounds=bounds, max_nfev=500)
        except RuntimeError:
            continue
        squares = float(np.sum((curve(compute, *values) - reward) ** 2))
        if squares < best:
            best, found = squares, values
    return (lambda c: np.full(len(c), reward[-1])) if found is None else (lambda c: curve(c, *found))


def law(study: families.Study, fits: Sequence[CurveFit]) -> np.ndarray:
    """The n nearest to the sigmoid n*(C) of the frontier inside the data; the last leader where there is no law."""
    envelope = frontier(list(fits), configurations(study))
    at = study.compute[1:]
    leaders = np.array([envelope.index_at(c) if envelope.index_at(c) is not None else 0 for c in at])
    sizes = study.group_sizes[leaders].astype(float)
    with warnings.catch_warnings(action="ignore"):
        found = fit_allocation(at, sizes, window=3, largest=float(study.group_sizes[-1]))
    wanted = np.array([float(found.optimal_group_size(c)) for c in families.LAST * TIMES])
    wanted = np.where(np.isfinite(wanted), wanted, sizes[-1])
    distance = np.abs(np.log2(study.group_sizes)[:, None] - np.log2(np.maximum(wanted, 1)))
    return distance.argmin(axis=0)


def print_regret(regret: dict[str, np.ndarray], family: np.ndarray) -> None:
    """Mean regret by family at 4 C, over all families at each ask, and paired differences."""
    print(f"{len(family)} studies. Mean regret at 4 C by family; over all families at each multiple of C\n")
    print("| method | " + " | ".join(families.FAMILIES) + " | 1 C | 2 C | 4 C | 16 C | tool less it, at 4 C |")
    print("| :-- |" + " --: |" * (len(families.FAMILIES) + 5))
    for name, rows in regret.items():
        cells = [f"{rows[family == f, 2].mean():.4f}" for f in families.FAMILIES]
        cells += [f"{value:.4f}" for value in rows.mean(axis=0)]
        gap = regret[TOOL][:, 2] - rows[:, 2]
        error = 1.96 * gap.std(ddof=1) / np.sqrt(len(gap))
        cells.append("" if name == TOOL else f"{gap.mean():+.4f} ± {error:.4f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def print_quality(held: np.ndarray, right: np.ndarray, error: np.ndarray, family: np.ndarray) -> None:
    """Coverage of the tool's 95% interval of the named n's reward, share of right n, and absolute error."""
    print("\n| family | interval holds: 1 C | 2 C | 4 C | 16 C | right n: 1 C | 4 C | error: 1 C | 4 C |")
    print("| :-- |" + " --: |" * 8)
    for name in (*families.FAMILIES, "all"):
        rows = np.ones(len(family), bool) if name == "all" else family == name
        cells = [f"{share:.0%}" for share in (*held[rows].mean(axis=0), *right[rows].mean(axis=0)[[0, 2]])]
        cells += [f"{value:.4f}" for value in error[rows].mean(axis=0)[[0, 2]]]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    app.run(main)
