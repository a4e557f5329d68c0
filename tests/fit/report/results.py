"""Results of made-up sweeps, by simple draws: what the page and the terminal are tried on."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.curves.fitting import CurveFit
from isocompute_jax.fit.engine import SweepDraws
from isocompute_jax.fit.frontier.answers import DrawnSweep, answer, answer_ranges, interval
from isocompute_jax.fit.frontier.paper import Frontier, frontier
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.questions.answers import QuestionResult
from isocompute_jax.fit.read import ReadOptions, RunCurve
from isocompute_jax.fit.results import (
    BudgetAnswer,
    Choice,
    CurveBand,
    DataFacts,
    NextRun,
    OptimalSizes,
    ScheduleResult,
    SweepResult,
    SwitchPoint,
)
from isocompute_jax.records.run_files import RunFacts

END = 131_072.0
DRAWS = 200


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a made-up sweep is like."""

    sizes: Sequence[int] = (4, 8, 16, 32, 64, 128)
    batches: Sequence[int] = (8,)
    seeds: int = 4
    evaluations: int = 24
    rise: float = 1.0
    falls: bool = False
    spread: float = 0.004  # of the draws
    width: float = 1.0  # of the range of rewards
    notes: tuple[str, ...] = ()


KINDS = {
    "six": Kind(),
    "two": Kind(sizes=(8, 64), notes=("3 of 51 rows were left out as without a number: a.csv:7; a.csv:9.",)),
    "thirty": Kind(batches=(2, 8, 32, 128, 512), seeds=3),
    "one_seed": Kind(seeds=1, spread=0.02),
    "falls": Kind(falls=True),
    "noisy": Kind(spread=0.03, notes=tuple(f"{i} of 31 runs were left out, why {i}: {'x' * 99}." for i in range(2, 7))),
    "flat": Kind(rise=0.0),
    "end_points": Kind(evaluations=1, spread=0.02),
    "percent": Kind(width=100.0),
    "alone": Kind(sizes=(16,)),
}  # fmt: skip


@functools.cache
def result(name: str, *, budgets: tuple[float, ...] = ()) -> SweepResult:
    """A sweep of that kind."""
    kind = KINDS[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    every = _configurations(kind)
    compute = np.concatenate([[1.0], np.geomspace(1024, END, 40), END * 8 ** (np.arange(1, 9) / 8)])
    drawn = kind.width * np.array([_draws(kind, each, compute, rng) for each in every])
    noise = kind.width * 0.006 * rng.normal(size=drawn.shape)
    draws = SweepDraws(compute, drawn, drawn + noise, np.full(DRAWS, 0.005))
    sweep = DrawnSweep(
        configurations=tuple(every),
        draws=draws,
        ends=np.full(len(every), END),
        steps_at=np.array([float(each.rollouts_per_step) for each in every]),
        width=kind.width,
        seeds=np.full(len(every), kind.seeds),
        agree=True,
    )
    grid = _answers(sweep, compute[1:])
    inside = [each for each in grid if each.budget <= END]
    bands = tuple(_band(kind, each, k, draws, rng) for k, each in enumerate(every))
    options = AnalysisOptions(read=ReadOptions(reward_range=(0.0, kind.width)), budgets=budgets)
    found = SweepResult(
        options=options,
        runs=tuple(_run(band, i) for band in bands for i in range(len(band.seeds))),
        metric="avg@4",
        data=_facts(kind, bands, draws),
        asked=_answers(sweep, np.array(budgets or (END,))),
        grid=grid,
        ranges=answer_ranges(inside),
        curves=bands,
        optimal=_optimal(inside) if len(kind.sizes) > 1 else None,
        switches=_switches(inside),
        next_runs=(),
        targets={},
        paper=None,
        questions=(),
        scheduled=(),
    )
    return dataclasses.replace(found, targets={"best@4": dataclasses.replace(found, metric="best@4")})


def rich() -> SweepResult:
    """A sweep with everything that a page can show."""
    found = result("six", budgets=(30_000.0, END))
    first = found.curves[3].configuration
    larger = dataclasses.replace(first, name="n = 256", group_size=256)
    budgets = np.geomspace(2e3, END, 16)
    line = {"panel": "reward", "compute": budgets, "value": 0.2 + 0 * budgets, "low": 0.1 + 0 * budgets}
    series = [line | {"name": name, "high": high + 0 * budgets} for name, high in (("easy", 0.3), ("hard", 0.4))]
    numbers = {"compute": END, "group_sizes": (4, 8)}
    rows = [{"train_set": name, "group_size": 8, "reward": 0.2, "reward_95": (0.1, 0.3)} for name in ("easy", "hard")]
    question = QuestionResult(
        "by_set", "", "open", numbers, ("train_set", "group_size", "reward"), tuple(rows), tuple(series)
    )
    scheduled = ScheduleResult(
        "n: 4 to 64", (0, 1), END, 0.43, (0.41, 0.45), first, 0.004, (-0.01, 0.02),
        ((np.geomspace(2e3, END, 9), np.linspace(0.1, 0.43, 9)),),
    )  # fmt: skip
    return dataclasses.replace(
        found,
        next_runs=(NextRun(first, END, 2, 2 * END, 0.004, 0.002), NextRun(larger, END, 1, END, 0.002, 0.0014)),
        questions=(question,),
        paper=_paper(found.curves),
        scheduled=(scheduled,),
    )


def _paper(bands: Sequence[CurveBand]) -> Frontier:
    fits = []
    for band in bands:
        octave = np.log2(band.configuration.group_size)
        params = {"floor": 0.08, "asymptote": 0.28 + 0.035 * octave, "midpoint": 1500 * 1.9**octave, "steepness": 1.0}
        ends = {name: (0.9 * value, 1.1 * value) for name, value in params.items()}
        fits.append(CurveFit("hill", params, (2048.0, END), interval95=ends, identified={"floor": True}))
    found = frontier(fits, [band.configuration for band in bands])
    return dataclasses.replace(found, records=tuple(band.points[0] for band in bands))


def _configurations(kind: Kind) -> list[Configuration]:
    found = []
    for n, batch in itertools.product(kind.sizes, kind.batches):
        name = f"n = {n}" + (f", B = {batch}" if len(kind.batches) > 1 else "")
        settings = ()
        found.append(Configuration(name, n, batch, 64, 2.5e-4, settings))
    return found


def _draws(kind: Kind, each: Configuration, compute: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[S, P] draws whose asymptote rises with n, and whose midpoint does so too."""
    octave = np.log2(each.group_size)
    top, middle = 0.2 + 0.035 * octave, 1500 * 1.9**octave * (1 + np.log2(each.problems_per_batch / 8) ** 2 / 40)
    mean = 0.08 + kind.rise * top * compute / (compute + middle)
    if kind.falls and each.group_size <= 8:
        mean -= 0.2 * np.clip(np.log(compute / 40_000) / np.log(4), 0, 1)
    wide = kind.spread * (1 + np.clip(np.log(compute / END), 0, None) * 3)
    tilt = rng.normal(size=(DRAWS, 2))
    place = np.linspace(-1, 1, len(compute))
    return np.clip(mean + wide * (tilt[:, :1] + tilt[:, 1:] * place) * 0.7, 0, 1)


def _answers(sweep: DrawnSweep, budgets: np.ndarray) -> tuple[BudgetAnswer, ...]:
    return tuple(each for budget in budgets if (each := answer(sweep, float(budget))) is not None)


def _band(kind: Kind, each: Configuration, k: int, draws: SweepDraws, rng: np.random.Generator) -> CurveBand:
    mean, run = draws.mean[k][:, 1:], draws.run[k][:, 1:]
    compute = draws.compute[1:]
    at = np.geomspace(2048, END, kind.evaluations) if kind.evaluations > 1 else np.array([END])
    points = []
    for _ in range(kind.seeds):
        own = np.interp(np.log(at), np.log(compute), mean.mean(axis=0)) + kind.width * 0.006 * rng.normal()
        points.append((at, own + kind.width * 0.008 * rng.normal(size=len(at))))
    low, high = np.quantile(mean, [0.025, 0.975], axis=0)
    run_low, run_high = np.quantile(run, [0.025, 0.975], axis=0)
    return CurveBand(
        each, tuple(range(kind.seeds)), tuple(points), END, compute, mean.mean(axis=0), low, high, run_low, run_high,
    )  # fmt: skip


def _run(band: CurveBand, place: int) -> RunCurve:
    each = band.configuration
    compute, reward = band.points[place]
    facts = RunFacts(each.group_size, each.problems_per_batch, 0, 64, 0, band.seeds[place])
    return RunCurve(f"{each.name}-s{place}", "a.csv", "0" * 64, facts, {}, True, compute, {"avg@4": reward})


def _facts(kind: Kind, bands: Sequence[CurveBand], draws: SweepDraws) -> DataFacts:
    count = len(bands) * kind.seeds
    flat = kind.rise == 0
    varies = tuple(
        name for name, values in (("group_size", kind.sizes), ("problems_per_batch", kind.batches)) if len(values) > 1
    )
    return DataFacts(
        runs=count,
        configurations=len(bands),
        seeds=(kind.seeds, kind.seeds),
        evaluations=count * kind.evaluations,
        evaluations_per_run=(kind.evaluations, kind.evaluations),
        span=(2048.0, END),
        common_end=END,
        held_out=True,
        equal="compute",
        varies=varies,
        trend="no rise" if flat else "rise",
        gain=(-0.003, 0.008) if flat else interval(draws.mean[-1, :, -1]),
        fallen=tuple(band.configuration for band in bands if kind.falls and band.configuration.group_size <= 8),
        curves=kind.evaluations > 2,
        left_out_rows=0,
        left_out_runs=0,
        notes=kind.notes,
    )


def _optimal(inside: Sequence[BudgetAnswer]) -> OptimalSizes:
    advised = [each.advised for each in inside]
    size = np.array([float(each.configuration.group_size) for each in advised])
    return OptimalSizes(
        budgets=np.array([each.budget for each in inside]),
        group_size=size,
        interval95=np.stack([size / 2, size * 2], axis=1),
        problems_per_batch=np.array([float(each.configuration.problems_per_batch) for each in advised]),
        num_steps=np.array([float(each.num_steps or np.nan) for each in advised]),
        law={"span": 4.0, "slope": 3.0, "midpoint": 4.2, "floor": 2.0, "saturation": 64.0},
    )


def _switches(inside: Sequence[BudgetAnswer]) -> tuple[SwitchPoint, ...]:
    found = []
    for one, other in itertools.pairwise(inside):
        before, after = one.advised.configuration, other.advised.configuration
        if before != after:
            at, epochs = other.budget, other.budget / (before.group_size * 64)
            ends = (0.8 * at, 1.3 * at)
            found.append(SwitchPoint(before, after, at, ends, 0.9, epochs, (0.8 * epochs, 1.3 * epochs)))
    return tuple(found)


def put(found: SweepResult, **changes: Any) -> SweepResult:
    """The result with other facts of its data."""
    return dataclasses.replace(found, data=dataclasses.replace(found.data, **changes))


def answered(found: SweepResult, **changes: Any) -> SweepResult:
    """The result with another answer."""
    return dataclasses.replace(found, asked=tuple(dataclasses.replace(each, **changes) for each in found.asked))


def with_costs(each: BudgetAnswer, costs: Sequence[float]) -> tuple[Choice, ...]:
    """The choices of an answer with these costs."""
    return tuple(dataclasses.replace(one, cost=cost) for one, cost in zip(each.choices, costs, strict=True))
