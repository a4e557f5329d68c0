r"""`python -m isocompute_jax.theory`: n*(C) of a sweep that was not run, in seconds.

    python -m isocompute_jax.theory --pass_rates=runs/study-quick/curated/hard/train.jsonl --budget=131072
    python -m isocompute_jax.theory --pass_rates=rates.csv --budget=1048576 --problem_set_size=256 --rate_rule=sqrt \
        --problems_per_batch=32 --group_sizes=8,16,32,64,128,256 --metric=worst

--pass_rates is a problem set as `isocompute_jax.curate` writes it (avg@k of each problem), or any .jsonl or .csv with
`pass_rate`. Says at once what of a question its constants were never tried on. Prints the reward of every n at budgets
up to --budget, which n is best where, how n* rises, whether it saturates, and how far such forecasts were off. How far
to trust it, and what its constants mean for a model of your own: docs/theory.md.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from absl import flags

from isocompute_jax import app
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

with app.imports():
    from isocompute_jax.theory.forecast import Question, measured_error, standing, untried
    from isocompute_jax.theory.runs import Constants

if TYPE_CHECKING:
    from isocompute_jax.theory.forecast import ExpectedCurves

PASS_RATES = flags.DEFINE_string("pass_rates", None, "Problem set with avg@k or pass_rate of each problem.")
OUT = flags.DEFINE_string("out", "", "File to write the forecast to as JSON, so that it can be held against the runs.")
define_flags(Question)
define_flags(Constants)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.theory.forecast import Filed, forecast, write_forecast
    from isocompute_jax.theory.pass_rates import read_pass_rates

    if OUT.value and not pathlib.Path(OUT.value).parent.is_dir():
        raise InputError(f"--out={OUT.value}: there is no such directory")
    if not PASS_RATES.value:
        raise InputError("--pass_rates is missing: give a problem set that was measured, by `isocompute_jax.curate`")
    question, constants = from_flags(Question), from_flags(Constants)
    rates = read_pass_rates(PASS_RATES.value)
    say(f"pass@1 of {len(rates):,} problems: mean {rates.mean():.3f}, from {rates.min():.2g} to {rates.max():.2g}")
    outside = untried(question, question.problem_set_size or len(rates))
    say(standing(constants, outside) + "\n", flush=True)  # before what takes a minute
    found = forecast(rates, question, constants)
    say(as_text(found, f"{question.metric}@{question.k}"))
    say(measured_error(constants, outside))
    if OUT.value:
        write_forecast(OUT.value, Filed(question, constants, found))


def as_text(found: ExpectedCurves, metric: str) -> str:
    """The table, and what it says."""
    heads = "".join(f"{f'n={n}':>8}" for n in found.group_sizes)
    lines = [
        f"{metric} of held-out problems; best n has the highest so far\n",
        f"{'rollouts':>12}{heads}{'best n':>8}  tied",
    ]
    for row, (compute, best, (low, high)) in enumerate(zip(found.compute, found.best, found.tied, strict=True)):
        rewards = "".join(f"{value:8.3f}" if value == value else f"{'-':>8}" for value in found.reward[:, row])
        tied = f"{low} to {high}" if low < high else ""
        lines.append(f"{compute:12,.0f}{rewards}{best:>8}  {tied}".rstrip())
    first, last = found.best[0], found.best[-1]
    end = "below the largest n compared" if found.saturated else "the largest n compared: try larger ones"
    lines.append(f"\nn* goes from {first} to {last}, {found.slope:.2f} octaves per octave of compute; {last} is {end}.")
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
