"""Which configuration is best, inside the data and beyond them: draws of all curves together, averaged over forms.

Each curve's posterior (`curves.posterior`) says what its own points say. Two things are shared by a sweep. Neighbours
in n are alike: asymptote, position and steepness walk at random in log n and log B_problem (`STEP`), so that a curve
that has not risen yet borrows from those that have; joint draws under that prior come from filtering forwards and
sampling backwards over the draws of the single curves (Carter and Kohn 1994). And all curves have one form: forms are
averaged by their evidence over the sweep, tempered (`TEMPER`), for no form is true and evaluations are less independent
than the likelihood takes them to be. And all runs begin with the base model: where some have evaluated it, the others
begin there too.

Beyond its data a curve goes on from these draws by what draws of a tempered likelihood gain (`MISFIT`): inside, its
evaluations say where it is, and no form is trusted to say where it goes. `benchmarks/prediction.py` and
`benchmarks/recorded.py` measure what this is worth.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.posterior import (
    STEEPNESS,
    Draws,
    Posterior,
    log_normal,
    log_sum,
    moved,
    position,
    posterior,
    steepness,
)
from isocompute_jax.fit.curves.seed_noise import SeedDifferences, differences, seed_noise
from isocompute_jax.fit.frontier.bootstrap import FittedPoints
from isocompute_jax.fit.frontier.collapse import Collapses, collapses
from isocompute_jax.fit.frontier.standings import Choice, prospect
from isocompute_jax.fit.results import Configuration

STEP = {"high": 0.05, "position": 0.8, "steepness": 0.25}
"""Standard deviation of the change over a factor of two in n or B_problem: of A as a share of the range, of the
logarithm of the compute at the rise, of the logarithm of the steepness."""

UNLIKE = 0.05
"""Probability that two neighbours are alike in nothing: one odd configuration must not carry the others along."""

DRIFTS = 0.06 * np.arange(-2.0, 2.1, 0.5)
"""Trends of A in n that are averaged over, changes over a factor of two: larger n may end higher, or lower, throughout.
They are taken as normal, two standard deviations wide to either side."""

MISFIT = 3.0
"""Beyond its data a curve gains what its form does with so many times the noise of its evaluations: no form is true,
and how far it misses out there shows in no residual. The likelihood is tempered by the square of this (Grünwald and van
Ommen 2017). Chosen on recorded sweeps cut at 1/4 and 1/8: with less, what a form says of the small n, which have shown
most of their rise, outvotes the large ones, which have hardly risen."""

LATER_DRIFTS = 0.04 + 0.04 * np.arange(-2.0, 2.1, 1.0)
"""The trends for that: mostly larger n end higher (IsoCompute, arXiv 2603.12151), while the start of a sweep tells
little of where they end."""

TEMPER = 10.0
"""Evidence of a form is divided by this."""

DRAWS = 400
"""Joint draws, and particles of each curve."""

LEAST_NOISE = 1e-4
"""No point is taken as more certain than this share of the range."""

LATTICE = 8
"""Where curves may fall, places to stop at are weighed at so many computes over a factor of two."""

POOLING = 8.0
"""Degrees of freedom with which the noise of all curves enters that of each."""

FAR_ENOUGH = 0.5
"""Curves that end before this share of the furthest one's compute do not tell how seeds differ: where a curve has not
come far enough to show its asymptote, seeds seem to differ in it by more than anything that they truly do."""


Table = tuple[tuple[Draws | None, ...], ...]
"""Per form, per curve."""


@dataclasses.dataclass(frozen=True, eq=False)
class Forecast:
    """S joint draws of K curves."""

    reference: float  # C_ref
    reward_range: tuple[float, float]
    weights: dict[FormName, float]  # form -> its share of the draws
    form: np.ndarray  # [S] number of each draw's form in `weights`
    draws: Table  # joint draw s is row s of those of its form
    members: np.ndarray  # [K] whether the configuration has a curve; the others' rewards are NaN
    noise: np.ndarray  # [K] standard deviation of a point about its curve, as a share of the range; NaN without a curve
    correlation: float  # of neighbouring points
    collapses: Collapses | None = None  # where curves fall, where some have; None in a sweep without a fall
    start: float | None = None  # the base model's share of the range, from which all rise; None where not evaluated
    ends: np.ndarray | None = None  # [K] compute of the last evaluation; NaN without data
    beyond: Forecast | None = None  # draws of the tempered likelihood (`MISFIT`): what curves gain beyond their ends
    _lattice: dict[int, np.ndarray] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def rewards(self, compute: float) -> np.ndarray:
        """[S, K] reward at `compute`."""
        found = np.full((len(self.form), len(self.members)), np.nan)
        kept = np.ones(found.shape) if self.collapses is None else self.collapses.kept(compute)
        for k in np.flatnonzero(self.members).tolist():
            low, share = self._continued(k, compute)
            found[:, k] = low + (share - low) * kept[:, k]
        low, high = self.reward_range
        return low + (high - low) * found

    def _continued(self, k: int, compute: float) -> tuple[np.ndarray, np.ndarray]:
        """As `_curve`, beyond the curve's end too; without data a curve is one of the tempered likelihood throughout.

        Where it is at its end and what it gains from there come from different draws. With data the first is known.
        Without, the spreads of the two would add up, though a curve that has risen early has little left to gain.
        """
        if self.beyond is None or self.ends is None or compute <= self.ends[k]:
            return self._curve(k, compute)
        if np.isnan(self.ends[k]):
            return self.beyond._curve(k, compute)
        low, share = self._curve(k, float(self.ends[k]))
        gain = self.beyond._curve(k, compute)[1] - self.beyond._curve(k, float(self.ends[k]))[1]
        return low, np.minimum(share + gain, 1.0)

    def _curve(self, k: int, compute: float) -> tuple[np.ndarray, np.ndarray]:
        """[S] the level that a curve rises from, and [S] where it is at `compute`, in shares of the range."""
        x = np.log(np.array([compute]) / self.reference)
        low, share = np.empty((2, len(self.form)))
        for number, name in enumerate(self.weights):
            rows = np.flatnonzero(self.form == number)
            if not len(rows):
                continue
            draws = self.draws[number][k]
            assert draws is not None
            low[rows] = draws.low[rows]
            share[rows] = low[rows] + (draws.high[rows] - low[rows]) * FORMS[name].share(draws.theta[rows], x)[:, 0]
            if self.start is not None and not FORMS[name].at_zero and compute < self.reference:
                share[rows] = self._before(low[rows], compute)
        return low, share

    def _before(self, low: np.ndarray, compute: float) -> np.ndarray:
        """[S'] shares of the range before the first data, of a form that has no value at C = 0: linear from there."""
        start = np.minimum(self.start or 0.0, low)
        return start + (low - start) * compute / self.reference

    def by_form(self) -> Forecast:
        """The same draws, each of which goes on by its form beyond the data too."""
        return dataclasses.replace(self, beyond=None)

    def best_within(self, number: int, compute: float) -> tuple[np.ndarray, float]:
        """What a configuration comes to with up to `compute`, stopped where it is expected to be the best.

        Stopping early is open, so that more compute is never worth less. Without a collapse in the sweep curves only
        rise, and all of it is spent. Else places to stop at are those of a lattice in log C, between which draws are
        interpolated, so that the expected reward has no peak that is not among them.

        Returns:
          Draws [S] of the reward, and where they stop.
        """
        place = LATTICE * float(np.log2(compute / self.reference))
        if self.collapses is None or place < 0:
            return self.rewards(compute)[:, number], compute
        whole, share = int(place), place - int(place)
        here = (1 - share) * self._at(whole)[:, number] + share * self._at(whole + 1)[:, number]
        means = [float(self._at(j)[:, number].mean()) for j in range(whole + 1)]
        best = int(np.argmax(means))
        if means[best] <= float(here.mean()):
            return here, compute
        return self._at(best)[:, number], self.reference * 2.0 ** (best / LATTICE)

    def _at(self, place: int) -> np.ndarray:
        """[S, K] rewards at a point of the lattice."""
        if place not in self._lattice:
            self._lattice[place] = self.rewards(self.reference * 2.0 ** (place / LATTICE))
        return self._lattice[place]

    def prospect(self, compute: float, among: Sequence[int]) -> Choice:
        """What to expect at `compute` of the configurations with the numbers `among` (see `prospect`)."""
        return prospect(self.rewards(compute)[:, among], among)


def forecast(
    measured: Sequence[FittedPoints],
    *,
    apart: BetweenSeeds | None = None,
    untried: Sequence[Configuration] = (),
    forms: Sequence[FormName] = tuple(FORMS),
    reward_range: tuple[float, float] = (0.0, 1.0),
    draws: int = DRAWS,
    seed: int = 0,
) -> Forecast:
    """Joint draws of what K curves are, inside and beyond their data.

    Args:
      measured: [K] evaluations, increasing in compute or seed by seed where seeds are pooled, those that count, and the
        noise, correlation and peak of their fits. A curve of which fewer than two evaluations count is not a member.
      apart: how seeds differ; None where they do not, or nothing tells.
      untried: [U] configurations without data, of known n: they stand last among the draws, a step of the random walk
        and its drift away from their nearest neighbour.
      forms: forms to average over; one for that form alone.
      reward_range: range of rewards.
      draws: S.
      seed: of the random numbers.
    """
    low, high = reward_range
    points = [(each.curve.compute[each.use], (each.curve.reward[each.use] - low) / (high - low)) for each in measured]
    members = np.array([np.count_nonzero(c > 0) >= 2 for c, _ in points])
    start = _start([points[k] for k in np.flatnonzero(members)])
    points = [_from(start, *each) for each in points]
    given = [*(each.curve.configuration for each in measured), *untried]
    order = sorted(np.flatnonzero(members).tolist(), key=lambda k: _place(given[k]))
    trained = np.concatenate([points[k][0][points[k][0] > 0] for k in order])
    reference = float(trained.min())
    box = 0.0, float(np.log(trained.max() / reference))
    errors, rho = _noise([len(points[k][0]) for k in order], [measured[k] for k in order], high - low)
    rng = np.random.default_rng(seed)

    def alone(name: FormName, times: float) -> list[Posterior]:
        """Of each member, with so many times the noise of its evaluations."""
        with np.errstate(divide="ignore"):
            x = [np.log(points[k][0] / reference) for k in order]
        return [
            posterior(name, at, points[k][1], noise=times * error, correlation=rho, box=box)
            for k, at, error in zip(order, x, errors, strict=True)
        ]

    def together(times: float, drifts: np.ndarray) -> tuple[dict[FormName, float], np.ndarray, Table]:
        """Weights of the forms, the form of each joint draw, and their draws."""
        table, evidence = [], []
        for name in forms:
            found = alone(name, times)
            single = [one.draw(draws, rng) for one in found]
            row, gained = _joined(name, single, order, given, len(points), box, rng, drifts)
            table.append(row if apart is None else apart.all_moved(name, row, high - low, rng))
            evidence.append(sum(one.evidence for one in found) + gained)
        weights = np.exp(np.array(evidence) / TEMPER - log_sum(np.array(evidence) / TEMPER))
        shares = (rng.permutation(draws) + 0.5) / draws
        form = np.minimum(np.searchsorted(np.cumsum(weights), shares), len(weights) - 1)
        return {name: float(each) for name, each in zip(forms, weights, strict=True)}, form, tuple(table)

    peaks = [each.fit.fall.compute if each.fit.fall else np.nan for each in measured]
    ends = [c.max() if member else np.nan for (c, _), member in zip(points, members, strict=True)]
    unknown = [np.nan] * len(untried)
    known = np.concatenate([members, np.ones(len(untried), bool)])
    noise = np.full(len(known), np.nan)
    noise[order] = errors
    near = together(1.0, DRIFTS)
    fallen = collapses(given, [*peaks, *unknown], [*ends, *unknown], draws=draws, rng=rng)
    far = together(MISFIT, LATER_DRIFTS)
    beyond = Forecast(reference, reward_range, *far, known, noise, rho, start=start)
    return Forecast(
        reference, reward_range, *near, known, noise, rho, fallen, start, np.array([*ends, *unknown]), beyond
    )


def _start(points: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Mean share of the range at C = 0 over all that were evaluated there; None where nobody was."""
    known = [share[compute == 0].mean() for compute, share in points if np.any(compute == 0)]
    return float(np.mean(known)) if known else None


def _from(start: float | None, compute: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points of a curve, begun at the base model where its own runs have not evaluated it."""
    if start is None or np.any(compute == 0):
        return compute, share
    return np.concatenate([[0.0], compute]), np.concatenate([[start], share])


def _place(configuration: Configuration) -> tuple[int, int]:
    """Neighbours stand side by side in this order."""
    return configuration.group_size, _batch(configuration)


def _batch(configuration: Configuration) -> int:
    return configuration.problems_per_batch or 0


class BetweenSeeds(NamedTuple):
    """What a mean over few seeds leaves open: seeds that differ carry it along, and no residual of its fit shows it.

    Draws of a forecast are of the curve through the means. Where seeds differ by more than their noise (F test, see
    `curves.seed_noise`), the curve of the next seed, and of all seeds, lies as far from that mean as they let expect:
    each draw of a configuration is moved by the mean of as many differences as it has seeds.
    """

    differences: SeedDifferences  # in the coordinates of a fit: A in reward, the first shape parameter's logarithm
    form: FormName  # of the fits
    seeds: Sequence[int]  # [K] of each configuration

    def all_moved(
        self, name: FormName, row: Sequence[Draws | None], reward_span: float, rng: np.random.Generator
    ) -> tuple[Draws | None, ...]:
        """The draws of every configuration that has any (see `moved`); those beyond the K, which were not run, stay."""
        tried = len(self.seeds)
        return tuple(
            self.moved(name, one, k, reward_span, rng) if one is not None and k < tried else one
            for k, one in enumerate(row)
        )

    def moved(self, name: FormName, draws: Draws, index: int, reward_span: float, rng: np.random.Generator) -> Draws:
        """The draws [S] of configuration `index` under the form `name`, as they may lie from the mean of its seeds."""
        own = self.differences.draw(len(draws.high), self.seeds[index], rng).mean(axis=1)
        high, shape = own.T
        zero = np.zeros_like(shape)
        later, steeper = {"expsat": (-shape, zero), "power": (zero, shape)}.get(self.form, (shape, zero))
        raised = np.clip(draws.high + high / reward_span, draws.low, 1.0)
        return Draws(draws.low, raised, moved(name, draws.theta, later, steeper))


def between_seeds(measured: Sequence[FittedPoints]) -> BetweenSeeds | None:
    """How the seeds of K curves differ, all fitted in one form; None where not by more than noise, or nothing tells."""
    known = [each for each in measured if each.fit.status != "failed"]
    ends = [float(each.curve.compute[each.use].max(initial=0.0)) for each in known]
    known = [each for each, end in zip(known, ends, strict=True) if end >= FAR_ENOUGH * max(ends)]
    noise = [seed_noise(each.curve, each.fit, use=each.use, size=each.size) for each in known]
    apart = differences([each for each in noise if each is not None])
    if apart is None:
        return None
    return BetweenSeeds(apart, known[0].fit.form, [len(each.curve.seeds) for each in measured])


Step = tuple[float, float]
"""Between neighbours: factors of two in n, and the size of the step in n and B_problem together."""


def _step(one: Configuration, other: Configuration) -> Step:
    """At least half a factor of two; infinite where an n is unknown."""
    if not (one.group_size and other.group_size):
        return 0.0, float("inf")
    factors = float(np.log2(other.group_size / one.group_size))
    batches = _batch(one), _batch(other)
    of_batches = abs(float(np.log2(batches[1] / batches[0]))) if all(batches) else 0.0
    return factors, max(abs(factors) + of_batches, 0.5)


def _joined(
    name: FormName,
    single: Sequence[Draws],
    order: Sequence[int],
    configurations: Sequence[Configuration],
    tried: int,
    box: tuple[float, float],
    rng: np.random.Generator,
    drifts: np.ndarray,
) -> tuple[tuple[Draws | None, ...], float]:
    """Joint draws of all configurations under one form, and the log evidence that joining them gains.

    Args:
      name: the form.
      single: draws of each member alone.
      order: their numbers, neighbours side by side.
      configurations: [K + U], those without data last; None stands for one of the others without a curve.
      tried: K.
      box: see `posterior`.
      rng: random numbers.
      drifts: trends of A in n, two standard deviations to either side of their mean.
    """
    steps = [_step(configurations[i], configurations[j]) for i, j in itertools.pairwise(order)]
    joint, drift, gained = _walk(name, single, steps, box, rng, drifts)
    by_number = dict(zip(order, joint, strict=True))
    for i, new in enumerate(configurations[tried:], start=tried):
        sizes = {k: _step(configurations[k], new) for k in sorted(order)}
        near = min(sizes, key=lambda k: sizes[k][1])
        by_number[i] = _onwards(name, by_number[near], drift, sizes[near], rng)
    return tuple(by_number.get(i) for i in range(len(configurations))), gained


def _onwards(name: FormName, before: Draws, drift: np.ndarray, step: Step, rng: np.random.Generator) -> Draws:
    """Draws of a curve of which nothing is known but its neighbour's draws."""
    factors, size = step
    change = {key: scale * np.sqrt(size) * rng.normal(size=len(drift)) for key, scale in STEP.items()}
    high = np.clip(before.high + drift * factors + change["high"], before.low, 1.0)
    return Draws(before.low, high, moved(name, before.theta, change["position"], change["steepness"]))


def _noise(counts: Sequence[int], measured: Sequence[FittedPoints], width: float) -> tuple[np.ndarray, float]:
    """[K] standard deviation of a point of each curve, drawn towards that of all runs, and one correlation.

    Args:
      counts: [K] points.
      measured: [K] curves, of which a point is the mean of so many runs.
      width: of the range of rewards.
    """
    runs = np.array([each.curve.count[each.use].mean() for each in measured])
    freedom = np.maximum(np.array(counts, float) - 4, 1)
    own = np.array([each.fit.noise / width for each in measured]) * np.sqrt(runs)
    known = np.isfinite(own)
    pooled = float(np.average(own[known] ** 2, weights=freedom[known])) if known.any() else 0.0
    freedom = np.where(known, freedom, 0.0)
    variance = (POOLING * pooled + freedom * np.where(known, own, 0.0) ** 2) / (POOLING + freedom) / runs
    rho = np.array([each.fit.correlation for each in measured])
    known &= np.isfinite(rho)
    shared = float(np.clip(np.average(rho[known], weights=freedom[known]), 0.0, 0.9)) if known.any() else 0.0
    return np.maximum(np.sqrt(variance), LEAST_NOISE), shared


def _walk(
    name: FormName,
    single: Sequence[Draws],
    steps: Sequence[Step],
    box: tuple[float, float],
    rng: np.random.Generator,
    drifts: np.ndarray = DRIFTS,
) -> tuple[list[Draws], np.ndarray, float]:
    """Joint draws of neighbouring curves under the random walk, the drift of each, and the log evidence that it gains.

    The draws of one curve are its particles: each stands for its likelihood times the prior of a single curve, which is
    divided out where the walk takes its place. Every drift is filtered; draws are shared out among them by
    their evidence.
    """
    count = len(single[0].high)
    pairs = itertools.pairwise(single)
    moves = [_move(name, before, after, step, box) for (before, after), step in zip(pairs, steps, strict=True)]
    filters = [_filter(moves, float(drift), count) for drift in drifts]
    evidence = np.array([log_sum(forward[-1]) - np.log(count) for forward in filters])
    prior = log_normal(drifts, drifts.mean(), (drifts[-1] - drifts[0]) / 4)
    evidence += prior - log_sum(prior)
    gained = float(log_sum(evidence))
    shares = np.cumsum(np.exp(evidence - gained))
    drawn = np.minimum(np.searchsorted(shares, (rng.permutation(count) + 0.5) / count), len(drifts) - 1)
    chosen = np.empty((len(single), count), int)
    for number in np.unique(drawn):
        rows = np.flatnonzero(drawn == number)
        chosen[:, rows] = _backwards(filters[number], moves, float(drifts[number]), len(rows), rng)
    joint = [Draws(*(part[i] for part in draws)) for draws, i in zip(single, chosen, strict=True)]
    return joint, drifts[drawn], gained


Move = Callable[[float], np.ndarray]
"""Drift of high -> [S, S] log density of a move from one curve's draws to its neighbour's, over that of no walk."""


def _move(name: FormName, before: Draws, after: Draws, step: Step, box: tuple[float, float]) -> Move:
    """From the draws of one curve to those of its neighbour; nothing moves over an infinite step.

    Neighbours that are not alike (`UNLIKE`) have the prior of a single curve. Of the two cases the larger term stands
    for the sum.
    """
    factors, size = step
    change = after.high - before.high[:, None]
    if not np.isfinite(size):
        return lambda drift: np.zeros_like(change)
    (names, old, _), (_, new, density) = _coordinates(name, before, box), _coordinates(name, after, box)
    rest = -np.broadcast_to(density, change.shape)
    for column, key in enumerate(names):
        if key != "high":
            rest = rest + log_normal(new[:, column] - old[:, column, None], 0.0, STEP[key] * np.sqrt(size))
    rest = rest + log_normal(change, 0.0, STEP["high"] * np.sqrt(size))

    def under(drift: float) -> np.ndarray:
        precision, mean = 1.0 / (STEP["high"] ** 2 * size), drift * factors
        density = change * (precision * mean)  # the square of change - mean, whose other terms `rest` has
        density += rest
        density += np.log1p(-UNLIKE) - 0.5 * precision * mean**2
        return np.maximum(density, np.log(UNLIKE), out=density)

    return under


def _filter(moves: Sequence[Move], drift: float, count: int) -> list[np.ndarray]:
    """[K] of [S] log weight of each curve's draws given the curves before it."""
    forward = [np.zeros(count)]
    for move in moves:
        forward.append(log_sum(forward[-1][:, None] + move(drift)) - np.log(count))
    return forward


def _backwards(
    forward: Sequence[np.ndarray], moves: Sequence[Move], drift: float, count: int, rng: np.random.Generator
) -> np.ndarray:
    """[K, count] numbers of the draws that make up joint draws."""
    last = np.exp(forward[-1] - log_sum(forward[-1]))
    chosen = [rng.choice(len(last), count, p=last)]
    for log_weight, move in zip(forward[-2::-1], moves[::-1], strict=True):
        weight = log_weight[:, None] + move(drift)[:, chosen[0]]
        climbed = np.exp(weight - weight.max(axis=0)).cumsum(axis=0)
        place = np.count_nonzero(climbed < rng.random(count) * climbed[-1], axis=0)
        chosen.insert(0, np.minimum(place, len(last) - 1))
    return np.stack(chosen)


def _coordinates(
    name: FormName, draws: Draws, box: tuple[float, float]
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """What walks: names, values [S, D], and the log density of these under the prior of a single curve [S]."""
    keys, columns, density = ["high"], [draws.high], np.log(2.0 * np.maximum(draws.high, 1e-6))
    place, rise = position(name, draws.theta), steepness(name, draws.theta)
    if place is not None:
        least, most = FORMS[name].box(box[1] - box[0])
        keys.append("position")
        columns.append(place)
        density = density - np.log(most[0] - least[0])
    if rise is not None:
        keys.append("steepness")
        columns.append(rise)
        density = density + log_normal(rise, *STEEPNESS[name])
    return tuple(keys), np.stack(columns, axis=1), density
