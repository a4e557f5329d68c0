"""How each evaluation problem goes, whether the seeds agree about which ones are solved, and how problems pull.

A line of eval.jsonl, and a row of a gallery's Parquet, has `solve_counts`: for each problem, in the order of the set,
how many of `samples` completions solved it. Measured rates of m samples spread more than the solve rates behind them:
by p (1 - p) / m, of which rate (1 - rate) / (m - 1) is an unbiased estimate. Variances between problems are without it.

`python -m isocompute_jax.interference` leaves mean cosines between problems' gradients in a run directory; see there,
and docs/runs.md, for how noise is kept out of them. Those of solved with unsolved problems say whether what is learned
from the one helps the other.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from isocompute_jax.fit.comparisons.comparison import (
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Value,
    common_verdict,
)
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, group_runs
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.wording import EN_DASH, listed, shortened, spent
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.interference_files import Cosine, Summary, read_summary
from isocompute_jax.records.run_files import EVAL, read_lines

MOST_ROWS = 60
"""Rows of a heat map; of more problems neighbours are averaged."""
ONE_PERCENT = 2.3263
"""Quantile of the normal distribution at 99%."""
CLEAR = 2.0
"""A mean cosine stands out from 0 where it is so many standard errors away."""
COUNTS, SAMPLES = "solve_counts", "samples"
COLUMNS = ("run", "eval_set", "compute", SAMPLES, COUNTS)
EVALUATION_SET = "validation"


@dataclasses.dataclass(frozen=True, eq=False)
class SolveTrajectories:
    """What the seeds of one configuration solved at each evaluation that all of them have.

    Attributes:
      configuration: which one.
      seeds: its S seeds.
      compute: [E] in the unit of the runs, rising.
      counts: [S, E, P] right samples of each problem.
      samples: [S, E] samples drawn of each problem.
    """

    configuration: Configuration
    seeds: tuple[int, ...]
    compute: np.ndarray
    counts: np.ndarray
    samples: np.ndarray

    @property
    def rates(self) -> np.ndarray:
        """[S, E, P] measured solve rates."""
        return self.counts / self.samples[..., None]

    @property
    def mean_rates(self) -> np.ndarray:
        """[E, P] of all samples of all seeds."""
        return self.counts.sum(axis=0) / self.samples.sum(axis=0)[:, None]


def solve_trajectories(runs: Sequence[RunCurve], *, eval_set: str = EVALUATION_SET) -> tuple[SolveTrajectories, ...]:
    """The solve counts of every configuration whose runs have them, ordered by n.

    Args:
      runs: as read (`SweepResult.runs`, `read_curves`); their files are read once more. Seeds without counts, and
        configurations whose seeds share fewer than two evaluations, are left out.
      eval_set: evaluation set; rows that name none belong to every set.

    Raises:
      InputError: the counts of a file are damaged, or the seeds of a configuration have different problems.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {source: _rows(source) for source in {run.source for run in runs}}
    read = {id(run): _of_run(run, rows[run.source], eval_set) for run in runs}
    found = [_of_configuration(group, [read[id(run)] for run in group.runs]) for group in group_runs(runs)[0]]
    return tuple(each for each in found if each is not None)


def alike(found: Iterable[SolveTrajectories]) -> tuple[SolveTrajectories, ...]:
    """Those with as many problems as most have: only problems of one set can be laid beside each other."""
    found = tuple(found)
    sizes = [each.counts.shape[-1] for each in found]
    most = max(sizes, key=sizes.count, default=0)
    return tuple(each for each, size in zip(found, sizes, strict=True) if size == most)


def _rows(source: str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """The rows of a file that have counts; none of a file of another kind."""
    path = pathlib.Path(source)
    if not path.is_file():  # a table in memory
        return []
    if path.suffix == ".jsonl":
        rows = read_lines(path, partial_last_line=True)
    elif path.suffix == ".parquet" and {COUNTS, SAMPLES} <= set((names := pq.read_schema(path)).names):
        rows = pq.read_table(path, columns=[c for c in COLUMNS if c in names.names], use_threads=False).to_pylist()
    else:
        return []
    return [row for row in rows if row.get(COUNTS) and row.get(SAMPLES)]


def _of_run(run: RunCurve, rows: Sequence[Mapping[str, Any]], eval_set: str) -> dict[float, tuple[np.ndarray, int]]:
    """Compute -> (counts [P], samples) of a run, at its evaluations; of what a file gives twice the later counts."""
    rollouts = run.columns.get("compute", np.full_like(run.compute, np.nan))
    place = dict(zip(rollouts.tolist(), run.compute.tolist(), strict=True))
    found = {}
    for row in rows:
        own = row.get("run", run.run) == run.run and (row.get("eval_set") or eval_set) == eval_set
        if own and row.get("compute") in place:
            found[place[row["compute"]]] = _checked(row, run)
    return found


def _checked(row: Mapping[str, Any], run: RunCurve) -> tuple[np.ndarray, int]:
    counts, samples = np.asarray(row[COUNTS]), row[SAMPLES]
    whole = counts.ndim == 1 and np.issubdtype(counts.dtype, np.integer)
    if not whole or counts.min() < 0 or counts.max() > samples:
        raise InputError(
            f"{run.source}: run {run.run} at compute {row['compute']}: {COUNTS} must be whole numbers from 0 to "
            f"{SAMPLES} = {samples}; correct the row, or delete its {COUNTS}"
        )
    return counts.astype(np.int64), int(samples)


def _of_configuration(
    group: ConfigurationRuns, read: Sequence[dict[float, tuple[np.ndarray, int]]]
) -> SolveTrajectories | None:
    """The evaluations that all seeds with counts share; None where they are fewer than two."""
    known = [(run, found) for run, found in zip(group.runs, read, strict=True) if found]
    compute = sorted(set.intersection(*(set(found) for _, found in known))) if known else []
    if len(compute) < 2:
        return None
    sizes = {len(counts) for _, found in known for counts, _ in found.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{known[0][0].source}: {group.configuration.name}: {COUNTS} has {min(sizes)} problems in one evaluation "
            f"and {max(sizes)} in another; analyse runs with one evaluation set at a time"
        )
    return SolveTrajectories(
        configuration=group.configuration,
        seeds=tuple(run.facts.seed for run, _ in known),
        compute=np.array(compute),
        counts=np.array([[found[at][0] for at in compute] for _, found in known]),
        samples=np.array([[found[at][1] for at in compute] for _, found in known]),
    )


@dataclasses.dataclass(frozen=True)
class ProblemSpread:
    """What the trajectories of one configuration say at their last evaluation.

    Attributes:
      run: name of the configuration.
      compute: of the last evaluation.
      first_rate: mean solve rate over problems and seeds at the first evaluation.
      last_rate: likewise at the last.
      first_spread: standard deviation of solve rates between problems at the first, without sampling noise.
      last_spread: likewise at the last; mean over seeds.
      in_common: share of the last variance between problems that all seeds have in common: 1 if the problem decides,
        0 if chance does; NaN with one seed, or without variance.
      in_common_error: its standard error, a jackknife over seeds; NaN with fewer than three.
      fallen: share of problems solved less often at the last than at the first (all seeds pooled, one-sided test of
        two proportions at 1%: chance alone shows about 0.01).
    """

    run: str
    compute: float
    first_rate: float
    last_rate: float
    first_spread: float
    last_spread: float
    in_common: float
    in_common_error: float
    fallen: float

    @property
    def shared(self) -> Value:
        """`61% ± 4%`, or a dash."""
        if not math.isfinite(self.in_common):
            return Value(self.in_common, text=EN_DASH)
        error = f" ± {self.in_common_error:.0%}" if math.isfinite(self.in_common_error) else ""
        return Value(self.in_common, stderr=self.in_common_error, text=f"{self.in_common:.0%}{error}")


def problem_spread(found: SolveTrajectories) -> ProblemSpread:
    """The numbers of one configuration; its `samples` must be 2 or more."""
    first, last = (_variances(found, at) for at in (0, -1))
    rates, seeds = found.rates[:, -1], range(len(found.seeds))
    without = [_in_common(np.delete(rates, seed, axis=0), np.delete(last, seed)) for seed in seeds]
    pooled = found.counts[:, [0, -1]].sum(axis=0)  # [2, P]
    drawn = found.samples[:, [0, -1]].sum(axis=0)[:, None]
    overall = pooled.sum(axis=0) / drawn.sum()
    error = np.sqrt(np.maximum(overall * (1 - overall), 0.0) * (1 / drawn).sum())
    fall = (pooled / drawn)[0] - (pooled / drawn)[1]
    return ProblemSpread(
        run=found.configuration.name,
        compute=float(found.compute[-1]),
        first_rate=float(found.rates[:, 0].mean()),
        last_rate=float(found.rates[:, -1].mean()),
        first_spread=math.sqrt(max(first.mean(), 0.0)),
        last_spread=math.sqrt(max(last.mean(), 0.0)),
        in_common=_in_common(rates, last),
        in_common_error=float(np.std(without) * math.sqrt(len(seeds) - 1)),
        fallen=float(np.mean(fall > ONE_PERCENT * error)),
    )


def _variances(found: SolveTrajectories, at: int) -> np.ndarray:
    """[S] variance between problems of the solve rates at an evaluation, unbiased."""
    rates, samples = found.rates[:, at], found.samples[:, at, None]
    noise = rates * (1 - rates) / np.maximum(samples - 1, 1)
    return rates.var(axis=1, ddof=1) - noise.mean(axis=1)


def _in_common(rates: np.ndarray, variances: np.ndarray) -> float:
    """Mean covariance of two seeds over problems, as a share of the variance of one; rates [S, P], variances [S]."""
    seeds = len(rates)
    if seeds < 2 or variances.mean() <= 0:
        return math.nan
    products = np.cov(rates)
    return float((products.sum() - np.trace(products)) / (seeds * (seeds - 1)) / variances.mean())


def compare_problems(result: SweepResult, counts: Sequence[SolveTrajectories]) -> list[ComparisonResult]:
    """The solve rate of each problem over compute, where the runs have counts of it.

    Args:
      result: of the analysis.
      counts: of its runs, of problems that are `alike`.
    """
    found = [each for each in counts if each.samples.min() > 1]
    if not found:
        return []
    rows = [problem_spread(each) for each in found]
    problems = found[0].counts.shape[-1]
    return [
        ComparisonResult(
            question="trajectories",
            verdict="some fall" if max(row.fallen for row in rows) > 0.01 else "none fall",
            findings=tuple(_of_spreads(result, rows)),
            numbers={"problems": problems},
            columns={
                "run": "configuration", "compute": "last compute", "first_rate": "first mean rate", "last_rate": "last",
                "first_spread": "first spread", "last_spread": "last", "in_common": "in common", "fallen": "fallen",
            },
            rows=tuple(
                dataclasses.asdict(row)
                | {
                    "compute": Value(row.compute, text=f"{row.compute:,.0f}"),
                    "in_common": row.shared,
                    "fallen": Value(row.fallen, text=f"{row.fallen:.1%}"),
                }
                for row in rows
            ),
            series=tuple(_heat_map(found)),
            title="How does each problem go?",
            about=f"Each of the {problems} evaluation problems was sampled at every evaluation. Spreads are standard "
            "deviations between problems, without the noise of sampling.",
            picture=Picture(
                "Solve rate of each evaluation problem over compute, one panel for each configuration",
                "Each row is a problem (or a few neighbouring ones), dark if never solved, bright if always; the order "
                "of rows is the same in all panels: easiest above.",
                Panel("problems"),
                shade="solve rate",
            ),
        )
    ]  # fmt: skip


def _heat_map(found: Sequence[SolveTrajectories]) -> list[DrawnSeries]:
    """Rates of problems, in the order of their mean rate over everything, a few neighbours together."""
    order = np.argsort(np.mean([each.mean_rates.mean(axis=0) for each in found], axis=0), kind="stable")
    bands = np.array_split(order, min(MOST_ROWS, len(order)))
    place = (np.arange(len(bands)) + 0.5) * len(order) / len(bands)
    series = []
    for each in found:
        trained, name = each.compute > 0, each.configuration.name
        rates = np.stack([each.mean_rates[trained][:, band].mean(axis=1) for band in bands])
        panel = shortened(name, 22)
        series.append(DrawnSeries(name, each.compute[trained], place, panel, shade=rates, look="cells"))
    return series


def _of_spreads(result: SweepResult, rows: Sequence[ProblemSpread]) -> list[str]:
    sentences = []
    shares = listed(f"{row.shared} ({row.run})" for row in rows if math.isfinite(row.in_common))
    if shares:
        sentences.append(
            f"Of the variance between problems at the last evaluation, seeds have in common: {shares} (± standard "
            "error over seeds). The rest is what each seed happened to learn."
        )
    worst = max(rows, key=lambda row: row.fallen)
    if worst.fallen <= 0.01:
        none = "With no configuration are more problems solved less often than at first than the 1% of chance."
        return [*sentences, none]
    return [
        *sentences,
        f"Most problems fell with {worst.run}: {worst.fallen:.1%} are solved less often at "
        f"{spent(result, worst.compute)} than at first; chance alone would show about 1%.",
    ]


class GradientCosines(NamedTuple):
    """Of one run: its name, n, and what was measured at its end."""

    run: str
    group_size: int
    measured: Summary

    @property
    def verdict(self) -> Literal["together", "against", "open", "none"]:
        """How solved and unsolved problems pull; `none` where there are no such pairs, or no signal."""
        value, error, _ = self.measured.cosines["between"]
        if not math.isfinite(value):
            return "none"
        if not abs(value) > CLEAR * error:  # nor with an error that is unknown
            return "open"
        return "together" if value > 0 else "against"


def gradient_cosines(runs: Sequence[RunCurve]) -> tuple[GradientCosines, ...]:
    """Those of every run directory that has them, in order of n.

    Raises:
      InputError: an interference.json is damaged.
    """
    paths = [(run, pathlib.Path(run.source)) for run in runs]
    read = [(run, read_summary(path.parent)) for run, path in paths if path.name == EVAL]
    found = [GradientCosines(run.run, run.facts.group_size, summary) for run, summary in read if summary is not None]
    return tuple(sorted(found, key=lambda each: each.group_size))


def compare_gradients(result: SweepResult) -> list[ComparisonResult]:
    """One where run directories have interference.json; it has no picture."""
    found = gradient_cosines(result.runs)
    if not found:
        return []
    verdicts = [each.verdict for each in found]
    return [
        ComparisonResult(
            question="gradient_cosines",
            verdict=common_verdict(verdict for verdict in verdicts if verdict != "none"),
            findings=(_of_cosines(verdicts),),
            columns={
                "run": "run", "solved": "among solved", "unsolved": "among unsolved", "between": "between the two"
            },
            rows=tuple(
                {"run": each.run, "group_size": each.group_size, "pull": each.verdict}
                | {name: _cosine(cosine) for name, cosine in each.measured.cosines.items()}
                for each in found
            ),
            title="Do problems pull the same way?",
            about="Mean cosine of two training problems' policy gradients at the end of a run, ± its standard error "
            "over problems. Solved are those that half of the rollouts solve, or more.",
        )
    ]  # fmt: skip


def _cosine(mean: Cosine) -> Value | None:
    return Value.with_error(mean.cosine, mean.stderr) if math.isfinite(mean.cosine) else None


def _of_cosines(verdicts: Sequence[str]) -> str:
    known = len(verdicts) - verdicts.count("none")
    if not known:
        return "No run has a signal from both solved and unsolved problems: how they pull on each other is not known."
    return (
        f"Between solved and unsolved problems the mean cosine is more than {CLEAR:g} standard errors above 0 in "
        f"{verdicts.count('together')} of {known} run{'s' * (known > 1)} (what is learned from the one helps the "
        f"other), and as far below 0 in {verdicts.count('against')}."
    )
