"""What a sweep shows: a live table on a terminal, plain lines in a log, and a table at the end.

Everything is read from the ends of the runs' own logs, so it costs next to nothing and the workers need no channel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.printing import printable
from isocompute_jax.sweeps.books import SweepState, tail

LOG = logging.getLogger(__name__)
TABLE_EVERY_S = 1.0
LINE_EVERY_S = 30.0
COLUMNS = ("run", "state", "step", "compute", "reward", "score", "rollouts/s", "ETA")
STYLES = {
    "done": "green", "failed": "red", "running": "bold", "queued": "", "waiting": "dim", "interrupted": "yellow",
}  # fmt: skip
SILENT_S = 600.0
"""A running run whose logs are older than so many seconds is shown with their age."""

Show = Callable[[Sequence[str]], None]
"""Called often, with the names of the runs that ended since the last call."""


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """How far a run has come."""

    step: int = 0  # steps taken
    compute: int = 0  # rollouts spent
    reward: float | None = None  # mean reward of the last step
    score: str = ""  # the first evaluation set's last avg@k, as `avg@4 0.31`
    rate: float | None = None  # rollouts per second lately, evaluations included and compiling not
    device_hours: float = 0.0  # spent
    silent_s: float | None = None  # seconds since the last line of its logs; None where there is none
    batch: int = 0  # rollouts of a scheduled run's last step, as planned; 0 for a fixed run


def read_status(directory: pathlib.Path, config: RunConfig) -> RunStatus:
    """Reads the ends of a run's logs; an absent or unfinished log is a run that has not come so far."""
    steps, evaluations = tail(directory / run_files.METRICS), tail(directory / run_files.EVAL)
    score = ""
    name = next(iter(config.evaluation.sets), None)
    for line in evaluations:
        if line.get("eval_set") == name:
            score = next((f"{key} {value:.3f}" for key, value in line.items() if key.startswith("avg@")), "")
    spent = max((line["device_hours"] for line in (*steps, *evaluations)), default=0.0)
    written = [path.stat().st_mtime for path in (directory / run_files.METRICS, directory / run_files.EVAL)
               if path.exists()]  # fmt: skip
    silent_s = time.time() - max(written) if written else None
    if not steps:
        return RunStatus(score=score, device_hours=spent, silent_s=silent_s)
    first, last = steps[0], steps[-1]
    seconds = last["wall_s"] - first["wall_s"] - max(0.0, _compiled_s(last) - _compiled_s(first))
    rate = (last["compute"] - first["compute"]) / seconds if seconds > 0 else None
    batch = last.get("group_size", 0) * last.get("problems_per_batch", 0)
    return RunStatus(last["step"], last["compute"], last.get("reward"), score, rate, spent, silent_s, batch)


def _compiled_s(line: Mapping[str, Any]) -> float:
    """For how long the process of a line had compiled; a later process begins anew, and earlier releases do not say."""
    return (line.get("speed") or {}).get("compiled_s") or 0.0


@contextlib.contextmanager
def display(sweep: SweepState, console: Console | None = None) -> Iterator[Show]:
    """Yields the function that shows the sweep: as a live table, or elsewhere as a line per ended run and per 30 s."""
    console = Console(stderr=True) if console is None else console
    if not console.is_terminal:
        yield _lines(sweep)
        return
    with Live(console=console, auto_refresh=False) as live:
        last = 0.0

        def show(ended: Sequence[str]) -> None:
            nonlocal last
            if ended or time.monotonic() - last >= TABLE_EVERY_S:
                last = time.monotonic()
                live.update(status_table(sweep, max_rows=console.height - 6), refresh=True)

        yield show
        live.update("", refresh=True)  # the caller prints the final table


def _lines(sweep: SweepState) -> Show:
    """Plain lines for a log."""
    last = time.monotonic()

    def show(ended: Sequence[str]) -> None:
        nonlocal last
        for name in ended:
            status = read_status(sweep.root / name, sweep.runs[name])
            LOG.info("%s: %s", name, f"{sweep.states[name]}: {sweep.reasons.get(name, status.score)}")
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            LOG.info("sweep: %s", headline(sweep, _statuses(sweep)))

    return show


def status_table(sweep: SweepState, *, max_rows: int | None = None) -> Table:
    """One row per run; where they are more than `max_rows`, those that run and the last that ended otherwise."""
    statuses = _statuses(sweep)
    shown = list(statuses)
    if max_rows is not None and len(shown) > max_rows:
        # Rank by state, as a stable sort, then back to plan order.
        rank = {"running": 0, "failed": 1, "interrupted": 1, "queued": 2, "waiting": 2, "done": 3}
        chosen = set(sorted(shown, key=lambda name: rank[sweep.states[name]])[: max(max_rows, 1)])
        shown = [name for name in shown if name in chosen]
    hidden = len(statuses) - len(shown)
    table = Table(caption=headline(sweep, statuses) + (f"; {hidden} runs not shown" if hidden else ""))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("run", "state") else "right", overflow="fold")
    for name in shown:
        cells = (escape(printable(text)) for text in _row(name, sweep, statuses[name]))
        table.add_row(*cells, style=STYLES[sweep.states[name]])
    return table


def print_plan(sweep: SweepState, hours: Mapping[str, str] | None = None, caption: str = "") -> None:
    """Every planned run, with n, B_problem, B, M and C, and whether it has finished.

    Args:
      sweep: the sweep.
      hours: name -> its device-hours, as text; None for no such column.
      caption: a sentence to end with.
    """
    table = Table(title=f"{len(sweep.runs)} runs in {sweep.root}")
    for column in ("run", "state", "n", "B_problem", "B", "steps", "compute", *(() if hours is None else ("hours",))):
        table.add_column(column, justify="left" if column in ("run", "state") else "right", overflow="fold")
    total = 0
    for name, config in sweep.runs.items():
        compute = config.planned_compute
        total += compute
        numbers = (config.group_size, config.problems_per_batch, config.rollouts_per_step, config.num_steps, compute)
        cells = [f"{number:,}" for number in numbers] + ([] if hours is None else [hours[name]])
        table.add_row(escape(printable(name)), sweep.states[name], *cells, style=STYLES[sweep.states[name]])
    table.caption = "; ".join(filter(None, [f"{total:,} rollouts, evaluations not counted", caption]))
    _stdout().print(table)


def print_result(sweep: SweepState) -> None:
    """The table of all runs, then why some failed or were interrupted."""
    console = _stdout()
    console.print(status_table(sweep))
    for name, reason in sweep.reasons.items():
        state = sweep.states[name]
        console.print(Text(printable(f"{name}: {state}: {reason}")), style=STYLES[state], soft_wrap=True)


def headline(sweep: SweepState, statuses: Mapping[str, RunStatus]) -> str:
    """`3 done, 2 running; 41% of 262,144 rollouts; 1.25 device-hours; 9,000 rollouts/s, about 0:12:30 left`."""
    states = list(sweep.states.values())
    parts = [f"{states.count(state)} {state}" for state in STYLES if state in states]
    ended = ("done", "failed")
    total = sum(config.planned_compute for config in sweep.runs.values())
    spent = sum(status.compute for status in statuses.values())
    text = f"{', '.join(parts)}; {spent / max(total, 1):.0%} of {total:,} rollouts"
    text += f"; {sum(status.device_hours for status in statuses.values()):.4g} device-hours"
    rates = [status.rate for name, status in statuses.items() if sweep.states[name] == "running" and status.rate]
    if not rates:
        return text
    left = sum(_left(sweep.runs[name], statuses[name]) for name in statuses if sweep.states[name] not in ended)
    together = sum(rates) / len(rates) * sweep.num_workers
    return f"{text}; {sum(rates):,.0f} rollouts/s, about {_clock(left / together)} left"


def _stdout() -> Console:
    """Wide enough for names in a pipe or a file."""
    return Console() if sys.stdout.isatty() else Console(width=140)


def _statuses(sweep: SweepState) -> dict[str, RunStatus]:
    return {name: read_status(sweep.root / name, config) for name, config in sweep.runs.items()}


def _row(name: str, sweep: SweepState, status: RunStatus) -> list[str]:
    config, state = sweep.runs[name], sweep.states[name]
    running = state == "running" and status.rate
    silent = state == "running" and status.silent_s is not None and status.silent_s > SILENT_S
    return [
        name,
        f"{state}, silent for {_clock(status.silent_s or 0.0)}" if silent else state,
        _steps(config, status),
        f"{status.compute:,}",
        "" if status.reward is None else f"{status.reward:.3f}",
        status.score,
        f"{status.rate:,.0f}" if status.rate else "",
        _clock(_left(config, status) / status.rate) if running and status.rate else "",
    ]


def _left(config: RunConfig, status: RunStatus) -> int:
    return max(config.planned_compute - status.compute, 0)


def _steps(config: RunConfig, status: RunStatus) -> str:
    """`12/96`; of a run that chooses its own n, `12/~96`, by what it has spent and what a step of its last n costs."""
    if config.schedule.kind != "auto":
        return f"{status.step:,}/{config.num_steps:,}"
    left = _left(config, status) // (status.batch or config.rollouts_per_step)
    return f"{status.step:,}/~{status.step + left:,}"


def _clock(seconds: float) -> str:
    """`h:mm:ss`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
