"""The answer in words: what to do with a budget, what to expect of it, how sure that is, and what speaks against it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from isocompute_jax.fit.answer_results import LIKELY, BudgetAnswer, BudgetRange, Confidence, Objection
from isocompute_jax.fit.frontier_results import SURE
from isocompute_jax.fit.report.wording import amount, between, figures, listed, shortlist, spent
from isocompute_jax.fit.results import Recommendation
from isocompute_jax.fit.sweep_results import SweepResult

LABELS: dict[Confidence, str] = {
    "sure": "Sure", "likely": "Likely", "open": "Uncertain", "tied": "A tie", "contradicted": "Contradicted",
    "unknown": "Not known",
}  # fmt: skip
CONFIDENCE_RULE = (
    f"Sure: the best in at least {SURE:.0%} of the draws (curves as the data allow them to be; without them, bootstrap "
    f"replicates); likely: in at least {LIKELY:.0%}; uncertain: in fewer. A tie: no difference was seen between those "
    "named. Contradicted: something in the data, told under Doubts, names another leader."
)
ESTABLISHED_RULE = (
    f"Established: at least {SURE:.0%} of the bootstrap replicates have the switch, and every seed alone shows it."
)


@dataclasses.dataclass(frozen=True)
class AnswerText:
    """A recommendation in words; what is unknown is empty.

    Attributes:
      question: the budget.
      pick: n, or the n between which no difference was seen, or the configuration.
      plan: steps and, where several were tried, problems per batch.
      expectation: the reward with its interval, and how far the budget is from the data.
      level: of confidence.
      label: the same in a word.
      certainty: the same in a sentence.
      against: what speaks against it, and what to mistrust.
      fixed: what the runs did not vary, so that it is no finding.
      reasons: the other reasons, as whole sentences.
    """

    question: str
    pick: str
    plan: str = ""
    expectation: str = ""
    level: str = ""
    label: str = ""
    certainty: str = ""
    against: tuple[str, ...] = ()
    fixed: str = ""
    reasons: tuple[str, ...] = ()


def answer_text(result: SweepResult, found: BudgetAnswer) -> AnswerText:
    """The answer for a budget."""
    row = found.recommendation
    if not math.isfinite(row.reward):
        question = f"To spend {spent(result, row.budget)}"
        return AnswerText(question, "no configuration fits", expectation=" ".join(row.reasons))
    interval = between(row.interval95, lambda value: f"{value:z.3f}")
    ends = f"95% interval {interval}" if interval else "no interval could be given"
    return AnswerText(
        question=f"To spend {spent(result, row.budget)}",
        pick=pick(result, row.group_size, row.run, found.tied_group_sizes),
        plan=_plan(result, found),
        expectation=f"Expect {result.metric} {row.reward:z.3f} ({ends}), {_where(row)}.",
        level=found.confidence,
        label=f"{LABELS[found.confidence]}, extrapolated" if row.place == "beyond" else LABELS[found.confidence],
        certainty=_certainty(result, found),
        against=(*row.doubts, *(objection_text(result, objection) for objection in found.objections)),
        fixed=_fixed(result, row),
        reasons=tuple(reason for reason in row.reasons if reason not in row.doubts),
    )


def pick(result: SweepResult, group_size: int, run: str, tied: Sequence[int] = ()) -> str:
    """`n = 16`, `n between 8 and 64`, `n = 8 or 64`; where n is unknown or one, the configuration."""
    if not group_size:
        return run
    if len(tied) < 2:
        return run if result.several_batches else f"n = {group_size}"
    between_them = [n for n in sorted(set(result.group_sizes)) if tied[0] <= n <= tied[-1]]
    if len(tied) > 2 and list(tied) == between_them:
        return f"n between {tied[0]} and {tied[-1]}"
    return f"n = {', '.join(map(str, tied[:-1]))} or {tied[-1]}"


def _plan(result: SweepResult, found: BudgetAnswer) -> str:
    """`1,953 steps of 32 problems x 16 rollouts`; of a tie, those of the configuration that was taken."""
    row = found.recommendation
    if not (row.num_steps and row.problems_per_batch):
        return ""
    steps = f"{row.num_steps:,} step{'s' if row.num_steps != 1 else ''}"
    text = f"{steps} of {row.problems_per_batch:,} problems \N{MULTIPLICATION SIGN} {row.group_size} rollouts"
    return f"Such as {row.run}: {text}" if row.tied else text


def _where(row: Recommendation) -> str:
    """Where the budget lies against the data of the configuration."""
    if row.place == "beyond":
        return f"{figures(row.beyond)} times as far as the data go"
    return "inside the data" if row.place == "inside" else "before the first evaluation"


def _certainty(result: SweepResult, found: BudgetAnswer) -> str:
    row = found.recommendation
    where = {"beyond": " where the data end", "before": " where the data begin"}.get(row.place, "")
    parts = []
    if row.tied:
        there = "" if math.isfinite(row.best_share) else where  # a forecast compares at the budget itself
        parts.append(f"No difference was seen between {shortlist(sorted([row.run, *row.tied], key=_natural))}{there}.")
    elif not result.several:
        parts.append("No other configuration was run.")
    elif found.share is not None:
        rival = f", {found.rival[0]} in {found.rival[1]:.0%}" if found.rival and found.share < SURE else ""
        if math.isfinite(row.best_share):
            parts.append(f"{row.run} is the best in {found.share:.0%} of the draws{rival}.")
        else:
            parts.append(f"{row.run} leads{where} in {found.share:.0%} of the bootstrap replicates{rival}.")
    else:
        parts.append("The frontier was not resampled.")
    if result.several and math.isfinite(row.expected_regret) and found.confidence != "sure":
        parts.append(f"Choosing {row.run} is expected to cost {row.expected_regret:.2g} in {result.metric}.")
    return " ".join(parts)


def _natural(name: str) -> list[tuple[str, int]]:
    """Names in the order of their numbers: `n = 8` before `n = 16`."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def _fixed(result: SweepResult, row: Recommendation) -> str:
    """What was not varied: the only value that was tried is no advice."""
    parts = []
    if row.problems_per_batch and not result.several_batches:
        parts.append(f"{row.problems_per_batch:,} problems per batch is the only number that was tried")
    if row.learning_rate:
        parts.append(f"the learning rate was not varied ({row.learning_rate:.2g} follows a rule, see Why)")
    return f"Not a finding: {listed(parts)}." if parts else ""


def objection_text(result: SweepResult, found: Objection) -> str:
    """One objection as a sentence."""
    match found.kind:
        case "form":
            where = f"by it {found.run} leads instead" if found.run else "the answer stays the same"
            how = f"fits clearly better (AICc lower by {amount(found.size)})"
            return f"Another form of curve, {found.by}, {how}; {where}."
        case "evaluations":
            return f"By the evaluations alone {found.run} is ahead, by {found.size:.2g} in {result.metric}."
        case "seeds":
            if found.size == 1:
                return f"1 of {found.of} seeds alone has another leader, {found.run}."
            return f"{found.size:.0f} of {found.of} seeds alone have another leader, mostly {found.run}."
        case "largest":
            return f"No n above {max(result.group_sizes)} was run: whether a larger one is better is not known."
        case "smallest":
            return f"No n below {min(result.group_sizes)} was run: whether a smaller one is better is not known."
        case "one_seed":
            return "Every configuration has one seed, so leads cannot be told from noise."


def range_cells(result: SweepResult, row: BudgetRange) -> tuple[str | None, ...]:
    """A range of budgets as a row: from and to, n, reward, confidence."""
    low, high = row.rewards
    if not math.isfinite(low):
        return f"{amount(row.start)} to {amount(row.end)}", "no configuration fits", None, None
    reward = f"{low:z.3f} to {high:z.3f}" if f"{low:z.3f}" != f"{high:z.3f}" else f"{low:z.3f}"
    told = row.share is not None and row.confidence in ("sure", "likely", "open")
    share = f" ({row.share:.0%})" if told else ""
    return (
        f"{amount(row.start)} to {amount(row.end)}",
        pick(result, row.group_size, row.run, row.tied_group_sizes),
        reward,
        f"{LABELS[row.confidence]}{share}{', extrapolated' if row.beyond else ''}",
    )


def other_form(result: SweepResult) -> str:
    """That another form of curve fits better, where it does; the same for every budget, so told once."""
    choice = result.form_choice
    used = {curve.fit.form for curve in result.fitted}
    if choice is None or choice.best in used or choice.strength == "hardly":
        return ""
    return f"The form {choice.best} fits these curves better than {shortlist(sorted(used))}: try --form={choice.best}."
