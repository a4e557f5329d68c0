"""What a study adds to the fitter's report: how its curves came about, what they cost, and where it departs.

Numbers are read from the study's own files; what the study departs in is a fact of its set-up, not a finding.
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
from isocompute_jax.fit.report.templating import ReportTable, Section
from isocompute_jax.records import run_files
from isocompute_jax.study.presets import Preset, Slice

EMBEDDED = (
    "A problem is a chain of additions and subtractions, answered by its running totals: 47+3-2= by "
    "50,48. The reward is 1 when the whole answer is right, else 0.",
    "The base model is a Qwen2 of 0.1 million parameters that was taught, by supervised "
    "learning, by a teacher who gets each elementary fact wrong at a rate of its own. So it solves some "
    "problems nearly always and others nearly never, as a real base model does. Problem sets are cut by the "
    "base model's own solve rate. Training and validation problems differ, but they are made of the same "
    "80 facts: validation measures how learned facts transfer to new chains.",
)
"""What the embedded study is made of."""


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
    samples = curation["samples"]
    rows = tuple(
        (name.replace("_", " "), _range(name), count, curation["train"][name], curation["validation"][name])
        for name, count in curation["in_range"].items()
    )
    solved = (
        f"solves {curation['mean']:.1%} of {samples} samples on each of {curation['problems']:,} problems. This report "
        f"is about the {part.problem_set} set."
    )
    if preset.base is None:
        paragraphs = (
            f"The model is {preset.run.model}, its problems are those of {preset.problems}. Problem sets are cut by "
            "the model's own solve rate before any training.",
        )
        finding = f"Before training the model {solved}"
    else:
        base = json.loads((root / "base" / "base_model.json").read_text(encoding="utf-8"))
        paragraphs = EMBEDDED
        finding = (
            f"The base model ended its supervised phase of {base['steps']} steps at {base['final_loss']:.3f} nats per "
            f"answer token, and {solved}"
        )
    return Section(
        title="The base model and its problems",
        paragraphs=paragraphs,
        figure=root / "curated" / "histogram.svg",
        alt="Histogram of the base model's solve rate over all measured problems",
        how_to_read=f"How many problems the base model solves how often, out of {samples} samples each. The shaded "
        "ranges are the sets that were cut.",
        findings=(finding,),
        table=ReportTable(("set", f"avg@{samples}", "in range", "training", "validation"), rows),
    )


def setup_section(preset: Preset, part: Slice, runs: Sequence[run_files.Run]) -> Section:
    """What was swept and what was held fixed, from the runs' own config.json."""
    config = runs[0].config["config"] if runs else {}
    swept = ", ".join(f"{field} in {{{', '.join(map(str, values))}}}" for field, values in part.axes.items())
    optimizer, evaluation = config["optimizer"], config["evaluation"]
    rows = (
        ("swept", swept),
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
    return Section(
        title="What was run",
        paragraphs=(part.question, "Everything that is not swept is the same in all runs."),
        table=ReportTable(("setting", "value"), rows),
    )


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
    return Section(
        title="What it cost",
        paragraphs=("Time is that of one process on one core, summed over runs; compiling is part of the first step.",),
        findings=(
            f"{len(runs)} runs sampled {training:,} rollouts for training and {evaluation:,} for evaluation in "
            f"{seconds / 60:.0f} core-minutes: {training / stepping:,.0f} rollouts per second of training on one core.",
            f"Sampler and learner agree on a token's log-probability to {difference:.1e} nats on average.",
        ),
        table=ReportTable(("phase", "seconds", "share"), rows),
    )


def departures_section(preset: Preset, part: Slice) -> Section:
    """Where this set-up differs from the paper's, and so what it cannot show."""
    if preset.base is None:
        return Section(
            title="How far to trust it",
            paragraphs=(
                f"{max(preset.slices[0].axes['seed']) + 1} seeds of each n, up to {preset.run.max_compute:,} rollouts "
                f"and n = {max(_group_sizes(part))}; the IsoCompute paper (arXiv 2603.12151) goes to 2,048. What is "
                "said beyond the budgets of these runs rests on the fitted curves alone.",
            ),
        )
    config: RunConfig = preset.run
    for field, value in part.overrides.items():
        config = override(config, field, value)
    exponent = config.optimizer.lr_scaling_exponent
    rate = "the learning rate is the same at every batch size (the paper scales it with the square root)"
    departures = [
        "a model of 0.1 million parameters on short arithmetic, not 7 to 8 billion on competition mathematics",
        f"{config.max_compute:,} rollouts per run, and group sizes up to "
        f"{max(_group_sizes(part))}; the paper goes to 2,048",
        "temperature 1 in place of 0.6",
        *([rate] if exponent == 0 else []),
        "the training problems share their facts with the validation problems",
    ]
    return Section(
        title="How far to trust it",
        paragraphs=(
            "This study exists to show the whole playbook at work on a laptop, with rollouts that were really sampled "
            "and gradients that were really taken. Its numbers say something about this small model and this task, "
            "under this budget; they are not predictions for a large one. It departs from the IsoCompute paper "
            "(arXiv 2603.12151) in this: " + "; ".join(departures) + ".",
        ),
    )


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


def summary_of(report: pathlib.Path) -> dict[str, Any]:
    """The summary.json beside a report."""
    return json.loads((report.parent / "summary.json").read_text(encoding="utf-8"))
