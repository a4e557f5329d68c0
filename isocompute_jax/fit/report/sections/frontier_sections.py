"""Sections about the frontier: n*(C), slices, ties, targets and switch points."""

from __future__ import annotations

from isocompute_jax.fit.answer_results import tie_ranges
from isocompute_jax.fit.frontier_results import SwitchResult
from isocompute_jax.fit.record_choices import choice_rows
from isocompute_jax.fit.report.findings import frontier_findings
from isocompute_jax.fit.report.findings.answers import ESTABLISHED_RULE
from isocompute_jax.fit.report.sections.section import Figures, Html, ReportTable, Section, cell
from isocompute_jax.fit.report.wording import amount, between, unit
from isocompute_jax.fit.sweep_results import SweepResult


def optimal_group_size(result: SweepResult, figures: Figures) -> Section:
    """n*(C), its law, and how much it depends on the choice of evaluations."""
    return Section(
        title="The best number of rollouts per problem, n*(C)",
        paragraphs=(
            "Reading the frontier's n at each evaluated budget gives n*(C). A sigmoid in log C is fitted to it, as in "
            "the IsoCompute playbook (arXiv 2603.12151):",
            Html(
                '<span class="formula">log<sub>2</sub> n* = L / (1 + exp(-k (log<sub>10</sub> C - log<sub>10</sub> '
                "C<sub>0</sub>))) + b.</span>"
            ),
            Html("Where it has levelled off, n* stays at 2<sup>L + b</sup>, its saturation value."),
        ),
        figure=figures.get("optimal_group_size"),
        alt="Optimal group size against compute, with its running average and fitted sigmoid",
        how_to_read=(
            "Each dot is the n on the frontier at one budget; its colour is the reward reached there. Grey bars span "
            "the n that lead in 95% of the bootstrap replicates (the experiment repeated on paper). A dashed sigmoid "
            "is one that the data do not pin down; the findings say why."
        ),
        findings=tuple(frontier_findings.optimal_group_size(result)),
    )


def choices(result: SweepResult) -> Section:
    """n*(C) under each rule for the evaluations that count, side by side."""
    rules = {"strict": "record-breaking (strict)", "bucketed": "a new bin (bucketed)", "off": "all (off)"}
    found = result.record_choices
    return Section(
        title="Does it depend on which evaluations are fitted?",
        paragraphs=(
            "Noise makes evaluations fall back. The IsoCompute playbook fits record-breaking ones only (strict); those "
            "that reach a new bin of reward (bucketed) and all of them (off) are the other choices. Picking high "
            "evaluations can move n*, so the best configuration under each choice is shown.",
        ),
        findings=tuple(frontier_findings.choices(result)),
        table=ReportTable(
            (f"compute ({unit(result)})", *(rules[rule] for rule in found)),
            tuple((_ends(row.first, row.last), *row.runs) for row in choice_rows(found)),
        ),
    )


def _ends(first: float, last: float) -> str:
    """`2,048 to 2,944`, or the one number."""
    return " to ".join(dict.fromkeys((cell(first), cell(last))))


def ties(result: SweepResult) -> Section:
    """Leads and ties by the evaluations alone."""
    return Section(
        title="Is the lead real? Ties and seeds",
        paragraphs=(
            "Here nothing is fitted. At each budget the mean evaluations of the configurations are compared. One ties "
            "with the best when it lies within one standard error of their difference; the noise of a seed is pooled "
            "over all configurations at that budget. Neighbouring budgets that agree share a row; ties.csv has each.",
        ),
        findings=tuple(frontier_findings.ties(result)),
        table=ReportTable(
            (f"compute ({unit(result)})", "best", "reward", "tied with it"),
            tuple(
                (_ends(row.first, row.last), row.best_run, _ends(*row.rewards), ", ".join(row.rivals) or None)
                for row in tie_ranges(result.ties.budgets)
            ),
        ),
    )


def batches(result: SweepResult, figures: Figures) -> Section:
    """B_problem and M along the frontier."""
    return Section(
        title="Problems per batch and steps along the frontier",
        paragraphs=(
            "The configuration on the frontier also has a number of problems per batch, B_problem*, and, at a given "
            "compute, a number of steps, M* = C / (n B_problem).",
        ),
        figure=figures["batches"],
        alt="Problems per batch and number of steps of the best configuration against compute",
        how_to_read="Each dot is the best configuration at one evaluated budget, in the colour of its n.",
        findings=tuple(frontier_findings.batches(result)),
    )


def slices_by_problems(result: SweepResult, figures: Figures) -> Section:
    """n*(C) at each B_problem."""
    return Section(
        title="n* when the problems per batch are fixed",
        paragraphs=("Among configurations with the same B_problem, more rollouts per problem mean fewer steps.",),
        figure=figures["slices_by_problems"],
        alt="Optimal group size against compute for each number of problems per batch",
        how_to_read="One panel for each B_problem (at most six); a dashed sigmoid is not pinned down by the data.",
        findings=tuple(frontier_findings.slices(result, "problems_per_batch")),
        table=_slices(result, "problems_per_batch", "B_problem"),
    )


def slices_by_rollouts(result: SweepResult, figures: Figures) -> Section:
    """n*(M) at each number of rollouts per step."""
    return Section(
        title="n* when the rollouts per step are fixed",
        paragraphs=(
            "Among configurations with the same B = n B_problem, more rollouts per problem mean fewer problems in a "
            "step, at the same number of steps. The sigmoid is one in M.",
        ),
        figure=figures["slices_by_rollouts"],
        alt="Optimal group size against steps for each number of rollouts per step",
        how_to_read="One panel for each B (at most six); a dashed sigmoid is not pinned down by the data.",
        findings=tuple(frontier_findings.slices(result, "rollouts_per_step")),
        table=_slices(result, "rollouts_per_step", "B"),
    )


def _slices(result: SweepResult, kind: str, symbol: str) -> ReportTable:
    return ReportTable(
        (symbol, "configurations", "n* first", "n* last", "saturation", "remark"),
        tuple(
            (
                part.value,
                len(part.runs),
                part.budgets[0].group_size,
                part.budgets[-1].group_size,
                part.allocation.saturation if part.allocation.status == "ok" else "not established",
                part.allocation.message or "ok",
            )
            for part in result.slices_of(kind)
        ),
    )


def targets(result: SweepResult, figures: Figures) -> Section:
    """avg@k, best@k and worst@k."""
    return Section(
        title="Average, best and worst of k",
        paragraphs=(
            "avg@k is the average solve rate over k samples of each evaluation problem. best@k asks whether at least "
            "one of k samples is right (coverage: how many problems are within reach); worst@k asks whether all k are "
            "(sharpening: how reliable the model is).",
        ),
        figure=figures["targets"],
        alt="The best group size at each budget for each target",
        how_to_read=(
            "One panel per target. A dot is the n with the best evaluation at that budget, a grey bar spans the n "
            "that tie with it, and the line is the n on the fitted frontier."
        ),
        findings=tuple(frontier_findings.targets(result)),
    )


def switches(result: SweepResult, figures: Figures) -> Section:
    """Switch points, in compute and in epochs."""
    found = result.frontier.crossings
    return Section(
        title="When to switch",
        paragraphs=(
            "Compute at a switch, divided by n D of the configuration that is left, is the number of times that it "
            "has gone through the training problems: a way to carry a switch point over to a problem set of another "
            "size.",
            ESTABLISHED_RULE,
        ),
        figure=figures.get("epochs"),
        alt="Number of epochs at each switch of the frontier",
        how_to_read=(
            "Filled: the mean of the seeds. Grey bar: where 95% of the bootstrap replicates have the switch. Hollow: "
            "the same switch in one seed alone. Dotted: one epoch."
        ),
        findings=tuple(frontier_findings.switches(result)),
        table=ReportTable(
            (
                "lead passes", f"at compute ({unit(result)})", "95% interval", "replicates", "epochs", "seeds alone",
                "lead", "established",
            ),
            tuple(
                (
                    f"{s.row.from_run} → {s.row.to_run}", s.row.compute, between(s.interval95, amount) or None,
                    None if s.share is None else f"{s.share:.0%}", s.row.epochs, _seeds(s),
                    _lead(s.beyond_noise), s.established,
                )
                for s in found
            ),
        ) if found else None,
    )  # fmt: skip


def _seeds(switch: SwitchResult) -> str | None:
    """How many seeds show a switch on their own."""
    return f"{len(switch.seen)} of {len(switch.by_seed)}" if switch.by_seed else None


def _lead(beyond_noise: bool | None) -> str:
    if beyond_noise is None:
        return "noise unknown"
    return "beyond noise" if beyond_noise else "within noise"
