"""Numbers in words, and text in columns: what findings, report and terminal say alike.

An estimate that the data do not identify is never said: in its place stands `not identified` and its interval.
"""

from __future__ import annotations

import itertools
import math
import operator
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from isocompute_jax.fit.curves.forms import SYMBOLS
from isocompute_jax.fit.results import Estimate
from isocompute_jax.records.printing import printable

if TYPE_CHECKING:
    from isocompute_jax.fit.sweep_results import CurveResult, SweepResult

MOST_LISTED = 3
"""Longer lists are left to the tables."""

TERMINAL_WIDTH = 100
_KEPT_TOGETHER = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"

UNITS = {"rollouts": "rollouts", "tokens": "tokens", "gpu_hours": "GPU-hours", "steps": "steps"}

EN_DASH = "\N{EN DASH}"

_SYMBOLS = {name: text for text, name in SYMBOLS.items()} | {"exponent": "B"}
_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def amount(compute: float) -> str:
    """A compute in words, to three significant figures: `12.5`, `44,900` or `5.6 million`."""
    for size, word in _LARGE:
        if compute >= 0.9995 * size:
            return f"{compute / size:.3g} {word}"
    if compute < 100:
        return f"{compute:z.3g}"
    return f"{round(compute, 2 - math.floor(math.log10(compute))):,.0f}"


def reward(value: float) -> str:
    """To three decimals."""
    return f"{value:z.3f}"


def reached(name: str, value: float, compute: float) -> str:
    """`n = 8: 0.412 at 44,900`, of one evaluation; without a name where that is empty."""
    return f"{name}{': ' if name else ''}{reward(value)} at {amount(compute)}"


def unit(result: SweepResult) -> str:
    """What compute is counted in."""
    return UNITS[result.options.read.compute]


def spent(result: SweepResult, compute: float) -> str:
    """`44,900 rollouts`."""
    return f"{amount(compute)} {unit(result)}"


def capital(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def listed(items: Iterable[Any]) -> str:
    """`a`, `a and b`, `a, b and c`; with semicolons where the items have commas themselves."""
    words = [str(item) for item in items]
    comma = "; " if any("," in word for word in words) else ", "
    return " and ".join([comma.join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shortlist(items: Sequence[Any]) -> str:
    """All of a short list; of a longer one the first few and how many more there are."""
    if len(items) <= MOST_LISTED + 1:
        return listed(items)
    return listed([*items[:MOST_LISTED], f"{len(items) - MOST_LISTED} more"])


def shortened(name: str, most: int = 30, gap: str = "\N{HORIZONTAL ELLIPSIS}") -> str:
    """A name of at most `most` characters: its middle is left out where it is too long."""
    kept = most - len(gap)
    return name if len(name) <= most else f"{name[: kept - kept // 2]}{gap}{name[len(name) - kept // 2 :]}"


def every_seed(count: int) -> str:
    """`both seeds` or `all 3 seeds`."""
    return "both seeds" if count == 2 else f"all {count} seeds"


def figures(value: float | None) -> str:
    """A number in three figures; a dash when there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:z.3g}"


def scale(value: float | None) -> str:
    """A count in three figures: `500M`, `1.5B`, `2.1e+19`."""
    if value is None or not math.isfinite(value):
        return "-"
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if factor <= value < 1000 * factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:z.3g}"


def between(interval: Sequence[float | None] | None, text: Callable[[float], str] = figures, to: str = " to ") -> str:
    """`0.71 to 1`; empty when there is no interval."""
    low, high = (None, None) if interval is None else interval
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{text(low)}{to}{text(high)}"


def value_of(estimate: Estimate, text: Callable[[float], str] = figures) -> str:
    """The value of an estimate where it is identified."""
    return text(estimate.value) if estimate.identified else "not identified"


def reach(low: float, high: float, text: Callable[[float], str] = figures) -> str:
    """An interval that may be open, in words: `0.12 to 0.13`, `above 0.1`, `below 2`, `no bounds`."""
    bounded = math.isfinite(low) and low != 0
    if not math.isfinite(high):
        return f"above {text(low)}" if bounded else "no bounds"
    return f"{text(low)} to {text(high)}" if bounded else f"below {text(high)}"


def stated(estimate: Estimate, text: Callable[[float], str] = figures) -> str:
    """`0.126 (95% interval: 0.12 to 0.13)`, or `not identified (95% interval: above 0.1)`."""
    if not (math.isfinite(estimate.low) or math.isfinite(estimate.high)):
        return f"{value_of(estimate, text)} (no interval)"
    return f"{value_of(estimate, text)} (95% interval: {reach(estimate.low, estimate.high, text)})"


def error_figures(value: float, error: float | None) -> tuple[str, str]:
    """A value and its standard error, rounded alike to two figures of the error; as powers of ten where it is tiny."""
    if not error or not math.isfinite(error):
        return f"{value:z.4g}", ""
    decimals = 1 - math.floor(math.log10(abs(error)))
    if decimals > 6 or max(abs(value), error) >= 1e7:
        return f"{value:z.3g}", f"{error:.2g}"
    shown = max(0, decimals)
    return f"{round(value, decimals):z,.{shown}f}", f"{round(error, decimals):,.{shown}f}"


def parameter(curve: CurveResult, name: str, *, sign: str = "±", to: str = " to ", interval: bool = True) -> str:
    """A parameter of a curve: `0.707 ± 0.006 (0.695 to 0.722)`, `not identified (0.71 to 1)`, `0.61 (held)`, or a dash.

    Args:
      curve: the curve.
      name: of the parameter.
      sign: before the standard error.
      to: between the ends of the interval.
      interval: give it for an identified parameter too.
    """
    value = curve.fit.params.get(name)
    if value is None or not math.isfinite(value):
        return "-"
    if name in curve.held:
        return f"{value:z.4g} (held)"
    ends = between(curve.fit.interval95.get(name), _short, to)
    if not curve.identified(name):
        return f"not identified ({ends})" if ends else "not identified"
    text, error = error_figures(value, curve.fit.stderr.get(name))
    text = f"{text} {sign} {error}" if error else text
    return f"{text} ({ends})" if ends and error and interval else text


def _short(value: float) -> str:
    return scale(value) if abs(value) >= 1e3 else figures(value)


def without_gap(sizes: Sequence[int], tried: Sequence[int]) -> bool:
    """Whether `sizes`, in order, are all that was tried from the first to the last: two numbers then say them."""
    return list(sizes) == [n for n in sorted(set(tried)) if sizes[0] <= n <= sizes[-1]]


def wrapped(text: str, *, first: str = "", indent: str = "", most: int | None = None) -> list[str]:
    """Lines of at most `TERMINAL_WIDTH` columns, indented, and of more than `most` none; `n = 8` stays on one line."""
    told = printable(text, lines=True).replace(" = ", _KEPT_TOGETHER)
    lines = textwrap.wrap(
        told, TERMINAL_WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, max_lines=most,
        placeholder=" \N{HORIZONTAL ELLIPSIS}",
    )  # fmt: skip
    return [line.replace(_KEPT_TOGETHER, " = ") for line in lines]


def cell(value: Any) -> str:
    """The text of a table's cell: floats to four significant figures, a dash for what is unknown."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return EN_DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:z.4g}"
    return value if isinstance(value, str) else str(value)


def span(first: float, last: float) -> str:
    """`2,048 to 2,944`, or the one number."""
    return " to ".join(dict.fromkeys((cell(first), cell(last))))


def symbol(name: str) -> str:
    """What the papers call a parameter."""
    return _SYMBOLS[name]


def course(result: SweepResult, rows: Sequence[Any], name: str) -> str:
    """How an attribute of the rows goes: `8 from 2,050 and 4 from 3,810 rollouts`."""
    value = operator.attrgetter(name)
    steps = [*rows[:1], *(b for a, b in itertools.pairwise(rows) if value(a) != value(b))]
    if len(steps) == 1:
        return f"{value(steps[0])} at every budget"
    return listed(f"{value(row)} from {amount(row.compute)}" for row in steps) + f" {unit(result)}"


def not_fitted(result: SweepResult) -> str:
    """Why evaluations may have been left out, under the options of the analysis."""
    why = ["stand alone far from their curve", "come after the peak of a curve that falls"]
    why += ["do not exceed the earlier ones"] if result.options.records != "off" else []
    why += ["lie outside of --window"] if result.options.fit.window else []
    return f"{', '.join(why[:-1])} or {why[-1]}"
