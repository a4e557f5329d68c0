"""`python -m benchmarks.fewest_runs`: how many runs settle n*(C) to one octave, by the fitter's `--next` and otherwise.

    python -m benchmarks.fewest_runs                     # one sweep of each source
    python -m benchmarks.fewest_runs --studies=4
    python -m benchmarks.fewest_runs --sources='recorded, C = 131,072' --studies=3

Sweeps that are known in full (`hidden_sweeps`): simulated ones of several families, some in the form of the recorded
sweep, worlds of the theory, and the recorded sweep itself. Runs are told one by one, and n is asked for at a budget C,
until the 95% interval of n* there, by the draws of the fitter's forecast, spans one octave. The ways to get there:

    interval  one run of each n up to C over `--start`, then one up to C of every n in the interval, until it is short
    --next    the same start, then what the fitter proposes, `--runs` at a time, which beyond the data goes up to C / 2;
              where it has nothing to propose, one up to C of every n in the interval
    random    the same start, then as many runs drawn from those that the fitter chooses from
    grid      one run of each n up to C, then another one of each

It ends, too, where choosing today is expected to cost less than `--immaterial`, as between curves that are alike, and
where `--most` grids were paid for. Held is the share of the settled in which the interval has the true n*; near that
in which the n that is named is within an octave of it; regret the true reward of the best n less that of the named one,
over all. Cost is in units of C, runs are runs. Of a recorded sweep whose seeds are all told the run that came least far
is told further, and paid for as a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from absl import flags

from benchmarks.hidden_sweeps import SOURCES, hidden_sweep
from benchmarks.settling import WAYS, Outcome, Rules, play
from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.records.errors import InputError

STUDIES = flags.DEFINE_integer("studies", 1, "Sweeps of each source.")
FIRST = flags.DEFINE_integer("first", 0, "Number of the first of them.")
FROM = flags.DEFINE_string("sources", "", "Some of the sources alone, ';' between them.")
THESE = flags.DEFINE_string("ways", "", "Some of the ways alone, ';' between them.")
START = flags.DEFINE_float("start", 8.0, "The first run of each n goes up to C over this.")
RUNS = flags.DEFINE_integer("runs", 2, "Runs that are proposed, or drawn, at a time.")
IMMATERIAL = flags.DEFINE_float("immaterial", 0.003, "Ends, too, where choosing today is expected to cost less reward.")
MOST = flags.DEFINE_float("most", 2.0, "Ends unsettled after so many grids of one run of each n up to C.")

HEAD = "sweep", "way", "sweeps", "settled", "immaterial", "cost / C", "median", "runs", "held", "near", "regret"


def main() -> None:
    """Flags -> table."""
    sources, ways = named(FROM, SOURCES), named(THESE, WAYS)
    rules = Rules(START.value, RUNS.value, IMMATERIAL.value, MOST.value)
    rows: dict[str, dict[str, list[Outcome]]] = {source: {way: [] for way in ways} for source in sources}
    for number in range(FIRST.value, FIRST.value + STUDIES.value):
        for source in sources:
            sweep = hidden_sweep(source, number)
            for way in ways:
                outcome = play(sweep, way, rules, number)
                rows[source][way].append(outcome)
                print(f"{source} {number}, {way}: {outcome}", flush=True)
    print_table(rows)


def named(flag: flags.FlagHolder, known: Sequence[str]) -> list[str]:
    """The names that a flag gives; all of them where it is empty."""
    given = [name.strip() for name in flag.value.split(";")] if flag.value else list(known)
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"--{flag.name}: {unknown[0]!r} is none of {'; '.join(known)}")
    return given


def print_table(rows: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> None:
    """By source and over all of them."""
    print()
    print_head(HEAD, left=(0, 1))
    ways = next(iter(rows.values()))
    together = {way: [each for of in rows.values() for each in of[way]] for way in ways}
    for source, by_way in [*rows.items(), ("all", together)]:
        for way, outcomes in by_way.items():
            print_row(source, way, len(outcomes), *cells(outcomes))


def cells(outcomes: Sequence[Outcome]) -> list[str]:
    """How many ended how; cost (mean, standard error, median), mean runs; how many settled ones were right; regret."""
    settled = [each for each in outcomes if each.ended == "settled"]
    cost = np.array([each.cost for each in outcomes])
    error = f" ± {cost.std(ddof=1) / np.sqrt(len(cost)):.1f}" if len(cost) > 1 else ""
    return [
        str(len(settled)),
        str(sum(each.ended == "immaterial" for each in outcomes)),
        f"{cost.mean():.1f}{error}",
        f"{np.median(cost):.1f}",
        f"{np.mean([each.runs for each in outcomes]):.1f}",
        f"{sum(each.held for each in settled)} of {len(settled)}",
        f"{sum(each.near for each in settled)} of {len(settled)}",
        f"{np.mean([each.regret for each in outcomes]):.4f}",
    ]


if __name__ == "__main__":
    app.run(main)
