"""What a study adds to the fitter's report: how its curves came about, what they cost, and where it departs.

Numbers are read from the study's own files; what the study departs in is a fact of its set-up, not a finding. What
theory expects of n*(C) from pass@1 alone stands beside what the runs measured: of the embedded study, on which the
model's constants were calibrated (`theory.Constants`). The words are templates in `sections/`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.experiment.curation.config import RANGES
from isocompute_jax.experiment.curation.curate import SUMMARY as CURATION_SUMMARY
from isocompute_jax.fit import SweepResult
from isocompute_jax.fit.report.figures import draw_series
from isocompute_jax.fit.report.figures.style import in_style, save_figure
from isocompute_jax.fit.report.wording import Section, section_from
from isocompute_jax.fit.results import OptimalSizes
from isocompute_jax.records import run_files
from isocompute_jax.records.identity import identity
from isocompute_jax.study.presets import Preset, Slice
from isocompute_jax.sweeps.grid import PlannedRun
from isocompute_jax.theory import ExpectedCurves, Question, forecast, question_about, read_pass_rates

FIGURE = "theory.svg"
WORDS = pathlib.Path(__file__).parent / "sections"


def sections(preset: Preset, part: Slice, root: pathlib.Path) -> tuple[list[Section], list[Section]]:
    """Sections before and after the analysis."""
    runs = [run_files.read_run(path) for path in run_files.find_runs(root / "runs" / part.name)]
    return (
        [problems_section(preset, part, root), setup_section(preset, part, runs)],
        [cost_section(runs), departures_section(preset, part)],
    )


def problems_section(preset: Preset, part: Slice, root: pathlib.Path) -> Section:
    """Base model and curation, from `curation.json`."""
    curation = json.loads((root / "curated" / CURATION_SUMMARY).read_text(encoding="utf-8"))
    base = None
    if preset.base is not None:
        base = json.loads((root / "base" / "base_model.json").read_text(encoding="utf-8"))
    rows = tuple(
        (name.replace("_", " "), _range(name), count, curation["train"][name], curation["validation"][name])
        for name, count in curation["in_range"].items()
    )
    return section_from(
        WORDS / "base_model.html.j2",
        figure=root / "curated" / "histogram.svg",
        columns=("set", f"avg@{curation['samples']}", "in range", "training", "validation"),
        rows=rows,
        preset=preset,
        part=part,
        curation=curation,
        base=base,
    )


def setup_section(preset: Preset, part: Slice, runs: Sequence[run_files.Run]) -> Section:
    """What was swept and what was held fixed, from the runs' own config.json."""
    config = runs[0].config["config"] if runs else {}
    swept = ", ".join(f"{field} in {{{', '.join(map(str, values))}}}" for field, values in part.axes.items())
    optimizer, evaluation = config["optimizer"], config["evaluation"]
    beside = ", ".join(f"{field} = {value}" for field, value in part.scheduled.items())
    rows = (
        ("swept", swept),
        *([("beside it", beside)] if beside else []),
        ("budget of a run, C", f"{config['max_compute']:,} rollouts"),
        ("loss", f"{config['loss']['policy_loss']}, sampler correction {config['loss']['correction_mode']}"),
        ("advantages", f"{config['recipe']['advantage_scale']}, aggregated by {config['recipe']['aggregation']}"),
        ("groups without signal", config["recipe"]["zero_variance_groups"]),
        ("KL, entropy coefficients", f"{config['loss']['kl_coef']:g}, {config['loss']['entropy_coef']:g}"),
        (
            "learning rate",
            f"{optimizer['base_lr']:g} x (B / {optimizer['base_batch']})^{optimizer['lr_scaling_exponent']:g}, "
            f"{optimizer['warmup_steps']} warm-up steps",
        ),
        ("temperature", f"{config['sampling']['temperature']:g} (training and evaluation)"),
        (
            "evaluation",
            f"{evaluation['samples']} samples of each held-out problem, k = {evaluation['k']}, at "
            f"{evaluation['points']} budgets",
        ),
    )
    return section_from(WORDS / "setup.html.j2", columns=("setting", "value"), rows=rows, part=part)


def cost_section(runs: Sequence[run_files.Run]) -> Section:
    """Rollouts and time, from the runs' logs."""
    ends = [run.metrics[-1] for run in runs if run.metrics]
    training = sum(row["compute"] for row in ends)
    evaluation = sum(run.evaluations[-1]["evaluation_rollouts"] for run in runs if run.evaluations)
    seconds = sum(run.evaluations[-1]["wall_s"] for run in runs if run.evaluations)
    phases: dict[str, float] = {}
    for run in runs:
        for row in run.metrics:
            for name, value in row["phase_s"].items():
                phases[name] = phases.get(name, 0.0) + value
    stepping = sum(phases.values())
    rows = tuple((name, f"{value:,.0f}", f"{value / stepping:.0%}") for name, value in phases.items())
    difference = float(np.mean([row["logprob_difference"] for run in runs for row in run.metrics]))
    return section_from(
        WORDS / "cost.html.j2",
        columns=("phase", "seconds", "share"),
        rows=rows,
        runs=len(runs),
        training=training,
        evaluation=evaluation,
        minutes=seconds / 60,
        rate=training / stepping,
        difference=difference,
    )


def departures_section(preset: Preset, part: Slice) -> Section:
    """Where this set-up differs from the paper's, and so what it cannot show."""
    config: RunConfig | None = None if preset.base is None else preset.run
    if config is not None:
        for field, value in part.overrides.items():
            config = override(config, field, value)
    seeds = max(preset.slices[0].axes["seed"]) + 1 if preset.base is None else None
    largest = max(_group_sizes(part))
    return section_from(WORDS / "trust.html.j2", preset=preset, config=config, seeds=seeds, largest_n=largest)


def _group_sizes(part: Slice) -> list[int]:
    """Every group size of a slice's axes, tied ones included."""
    found = []
    for fields, values in part.axes.items():
        names = fields.split("+")
        if "group_size" in names:
            position = names.index("group_size")
            found += [value[position] if len(names) > 1 else value for value in values]
    return found


def _range(name: str) -> str:
    """`0.3 to 0.6`, or nothing for a mixture."""
    if name not in RANGES:
        return "mixture"
    low, high = RANGES[name]
    return f"{low:g} to {high:g}" if low != high else f"{low:g}"


def question_of(planned: list[PlannedRun]) -> Question | None:
    """The sweep as theory asks about it; None where it has nothing to say.

    It knows runs that differ in n and the seed alone, at two budgets or more, without KL and entropy terms.
    """
    planned = [run for run in planned if not run.config.schedule.text]
    config = planned[0].config.resolved()
    first_budget = config.evaluation.first(config.max_compute)
    sizes = tuple(sorted({run.config.group_size for run in planned}))
    alike = {_without_size(run.config) for run in planned}
    if len(alike) > 1 or len(sizes) < 2 or first_budget >= config.max_compute:
        return None
    return question_about(identity(config), sizes, first_budget)


def theory_section(planned: list[PlannedRun], result: SweepResult, out: pathlib.Path) -> list[Section]:
    """One section, with its figure in `out`; none where theory has nothing to say of the slice.

    Args:
      planned: the runs of the slice.
      result: what its curves say.
      out: directory of the report.
    """
    question = question_of(planned)
    if question is None or result.optimal is None:
        return []
    optimal = set(result.optimal.budgets.tolist())
    answers = [each for each in result.grid if each.budget in optimal and each.budget >= question.first_budget]
    if not answers:
        return []
    found = forecast(read_pass_rates(planned[0].config.train_set), question)
    compute = np.array([each.budget for each in answers])
    measured = np.array([each.advised.configuration.group_size for each in answers])
    at = np.abs(np.log(found.compute[:, None] / compute)).argmin(axis=0)  # the nearest budget
    expected = found.best[at]
    near = np.abs(np.log2(expected / measured)) <= 1
    rewards = [
        np.interp(np.log(budget), np.log(found.compute), np.nan_to_num(found.records[_row(found, n)]))
        for budget, n in zip(compute, measured, strict=True)
    ]
    rows = tuple(
        (f"{each.budget:,.0f}", m, int(n), f"{each.advised.reward:.3f}", f"{reward:.3f}")
        for each, m, n, reward in zip(answers, measured.tolist(), expected, rewards, strict=True)
    )
    out.mkdir(parents=True, exist_ok=True)
    with in_style():
        drawn = draw_series(result, _drawn(found, result.optimal))
        assert drawn is not None
        figure = save_figure(drawn, out / FIGURE)
    return [
        section_from(
            WORDS / "theory.html.j2",
            figure=figure,
            columns=("rollouts", "n* measured", "n* expected", "reward at it", "expected there"),
            rows=rows,
            expected=expected,
            measured=measured,
            near=int(near.sum()),
        )
    ]


def _drawn(found: ExpectedCurves, optimal: OptimalSizes) -> list[dict[str, Any]]:
    """n*(C) twice: as expected, with what theory cannot tell from it, and as measured, with the n of 95% of draws."""
    sides = (
        ("expected by theory", found.compute, found.best, *found.tied.T),
        ("measured", optimal.budgets, optimal.group_size, *optimal.interval95.T),
    )
    names = ("name", "compute", "value", "low", "high")
    return [{"panel": "group_size", **dict(zip(names, side, strict=True))} for side in sides]


def _row(found: ExpectedCurves, group_size: int) -> int:
    """Of a group size."""
    return int(np.flatnonzero(found.group_sizes == group_size)[0])


def _without_size(config: RunConfig) -> str:
    """All of a config but what seeds and sizes differ in, as text."""
    return repr([(name, value) for name, value in vars(config).items() if name not in ("group_size", "seed")])


def title_of(report: pathlib.Path) -> str:
    """The question that a report answers, by the summary.json beside it."""
    summary = json.loads((report.parent / "summary.json").read_text(encoding="utf-8"))
    flags = summary["options"] if "options" in summary else summary["flags"]  # of reports of schema 2
    return flags["title"]
