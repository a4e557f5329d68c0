"""What one look comes to, line by line: fine, look or wrong, with the numbers and the field to set."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pathlib
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from isocompute_jax.accelerators import GIB
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.evaluation import LOOK_AT
from isocompute_jax.pilot.check import OPENED, Facts, PromptFacts, RolloutFacts
from isocompute_jax.records.errors import CONFIG
from isocompute_jax.records.printing import printable

State = Literal["fine", "look", "wrong"]
BANDS = (0.0, 0.1, 0.3, 0.6, 0.9, 1.0)
"""Ends of the histogram's bands of pass@1; the first band is 0 alone, and the last 1 alone."""
HELD = 0.95
SIDES = {"paid": True, "not paid": False}
WIDTH = 110
SLOW_S = 1.0


@dataclasses.dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    state: State
    what: str
    said: str
    remedy: str = ""  # names the field to set; empty where nothing is to be done, or `said` says it


def lines(facts: Facts) -> list[Line]:
    """All that was looked at, in the order of a run."""
    found = [Line("wrong", what, str(error)) for what, error in facts.refused.items()]
    found += _of_model(facts)
    found += _of_problems(facts)
    if facts.prompts is not None:
        found += _of_prompts(facts, facts.prompts)
    if facts.rollouts is not None:
        found += _of_answers(facts, facts.rollouts)
        found += _of_rewards(facts, facts.rollouts)
        found += of_solving(facts.config, facts.rollouts)
    return found + list(_of_agreement(facts))


def graded(share: float, look: float, wrong: float) -> State:
    """The state of a share of things at fault: `look` and `wrong` are what it must be above."""
    return "wrong" if share > wrong else "look" if share > look else "fine"


def _line(state: State, what: str, said: str, remedy: str) -> Line:
    return Line(state, what, said, "" if state == "fine" else remedy)


def _of_model(facts: Facts) -> Iterator[Line]:
    shape, sampling = facts.shape, facts.config.sampling
    if shape is not None:
        longest = sampling.max_prompt_tokens + sampling.max_tokens
        head = "is tied to the embedding, and counts once" if shape.tied_embeddings else "has weights of its own"
        where = f"sequences of up to {longest:,} tokens, of {shape.max_positions:,} positions"
        yield Line("fine", "head", f"the head {head}; {where}")
    if facts.memory is not None:
        *parts, room = facts.memory.values()
        weights, batch, rollout = map(_bytes, parts)
        said = (
            f"weights and moments {weights}, a step's tokens {batch}, the longest rollout {rollout} while it is drawn"
        )
        said += f"; there are {_bytes(room)}. What an update takes beside them says train --dry_run"
        remedy = f"set {CONFIG.mesh.fsdp}, or lower {CONFIG.sampling.max_tokens}, or take more devices"
        yield _line(graded(sum(parts) / room, 0.8, 1.0), "memory", said, remedy)


def _of_problems(facts: Facts) -> Iterator[Line]:
    config = facts.config
    if facts.ungraded or facts.problems:
        said = f"{facts.ungraded:,} of {facts.ungraded + facts.problems:,} problems have an answer that no grader reads"
        remedy = f"mend their rows, or name what grades them in {CONFIG.reward.function}"
        yield _line("wrong" if facts.ungraded else "fine", "golds", said, remedy)
    remedy = f"name some in {CONFIG.evaluation.sets}: python -m isocompute_jax.split makes sets"
    for name, (count, of) in facts.shared.items():
        said = f"{count:,} of {of:,} problems of {name} are trained on too"
        yield _line(graded(count / of, 0.0, 0.05), "held out", said, f"{remedy} that share no question")
    if not facts.shared and "held out" not in facts.refused:
        said = "the training file is all that is evaluated" if config.evaluation.sets else "no problems are held out"
        yield Line("wrong" if config.evaluation.sets else "look", "held out", said, remedy)


def _of_prompts(facts: Facts, prompts: PromptFacts) -> Iterator[Line]:
    tokenizer, of, field = facts.tokenizer, len(prompts.lengths), CONFIG.prompts.chat_template
    assert tokenizer is not None
    named = ", ".join(f"{tokenizer.backend.id_to_token(token)} ({token})" for token in tokenizer.eos_ids)
    warned = prompts.warned.get("ends")
    yield Line("wrong", "ends", warned) if warned else Line("fine", "ends", f"a completion ends at {named}")
    if "template" in prompts.warned:  # a model whose texts end with a chat's turns was taught on chats
        ends = filter(None, map(tokenizer.backend.id_to_token, tokenizer.eos_ids))
        taught = any(end in tokenizer.after_answers for end in ends)
        said = f"the model has a chat template, and prompts go without it ({prompts.chats:,} chats)"
        yield Line("wrong" if taught else "look", "template", said, f"set {field}=on, or off where it is meant so")
    else:
        which = "writes all prompts" if prompts.chats else "is not used" if tokenizer.chat else "is not there"
        yield Line("fine", "template", f"a chat template {which}; train --show_prompts=3 shows what is read")
    if prompts.bos:
        wrong = prompts.doubled_bos or (prompts.without_bos and prompts.puts_bos)
        said = f"{prompts.bos} twice in {prompts.doubled_bos:,} of {of:,} prompts, missing in {prompts.without_bos:,}"
        remedy = "take it out of the prompts, or of the chat template" if prompts.doubled_bos else (
            "let the chat template begin with bos_token; if the model was taught without, drop it in "
            "tokenizer_config.json"
        )  # fmt: skip
        state = "wrong" if wrong else "look" if prompts.without_bos else "fine"
        yield _line(state, "BOS", said if state != "fine" else f"{prompts.bos} once in each of {of:,} prompts", remedy)
    said = f"{prompts.ending:,} of {of:,} prompts end in a token that ends a completion"
    remedy = f"take it from the end of the prompts, or of {CONFIG.prompts.suffix}: the chat template opens an answer"
    yield _line("wrong" if prompts.ending else "fine", "prompts' ends", said, remedy)
    limit = facts.config.sampling.max_prompt_tokens
    beyond, longest = int((prompts.lengths > limit).sum()), int(prompts.lengths.max())
    said = f"prompts have {np.median(prompts.lengths):,.0f} tokens in the middle and {longest:,} at most"
    said += f"; {beyond:,} of {of:,} are longer than {limit:,}"
    remedy = f"set {CONFIG.sampling.max_prompt_tokens}={longest}, or leave the problems out"
    yield _line("wrong" if beyond else "fine", "prompts' lengths", said, remedy)


def _of_answers(facts: Facts, rollouts: RolloutFacts) -> Iterator[Line]:
    answers, limit, prompts = rollouts.answers, facts.config.sampling.max_tokens, facts.prompts
    tokens = np.array([answer.tokens for answer in answers])
    cut = sum(answer.cut for answer in answers)
    holds = float(np.quantile(tokens, HELD)) if cut <= (1 - HELD) * len(tokens) else math.inf
    if math.isinf(holds) and cut < len(tokens):  # they go on ending at the rate at which they did
        holds = max(tokens.sum() / (len(tokens) - cut) * -math.log(1 - HELD), limit + 1)
    length = "no length is known to hold 95%" if math.isinf(holds) else f"about {_rounded(holds):,} would hold 95%"
    said = f"{cut:,} of {len(answers):,} answers are cut off at {limit:,} tokens, {tokens.mean():,.4g} each; {length}"
    untaught = prompts is not None and "template" in prompts.warned
    also = f", or {CONFIG.prompts.chat_template}=on" if untaught else ""
    wanted = "higher" if math.isinf(holds) else f"to {_rounded(holds)}"
    remedy = f"set {CONFIG.sampling.max_tokens} {wanted}{also}, or see to what ends an answer"
    harm = 0.5 if not any(answer.cut and answer.paid for answer in answers) else 1.0  # some need no end to be paid
    yield _line(graded(cut / len(answers), 0.1, harm), "answers' lengths", said, remedy)
    thought = [answer for answer in answers if answer.thought]
    if thought:
        left = sum(answer.thought == "open" for answer in thought)
        said = f"{left:,} of {len(thought):,} answers that open {OPENED} never close it"
        remedy = (
            f"set {CONFIG.sampling.max_tokens} higher, or take {OPENED} out of {CONFIG.prompts.generation_prefix} and "
            "the template's end (enable_thinking=false in config.prompts.template_options, where it is known)"
        )
        yield _line(graded(left / len(thought), 0.1, 0.5), "thinking", said, remedy)


def _of_rewards(facts: Facts, rollouts: RolloutFacts) -> Iterator[Line]:
    answers, name = rollouts.answers, facts.config.reward.function or "the reward"
    failed = [answer for answer in answers if answer.failure]
    rewards = np.array([answer.reward for answer in answers if not answer.failure])
    if failed:
        said = f"{name} failed on {len(failed):,} of {len(answers):,} answers, such as: {failed[0].failure}"
        remedy = f"mend {CONFIG.reward.function}: what fails is worth 0 to a run, or see {CONFIG.reward.on_failure}"
        yield Line(graded(len(failed) / len(answers), 0.0, 0.05), "failures", said, remedy)
    if not len(rewards):
        return
    values, counts = np.unique(rewards, return_counts=True)
    spread = ", ".join(f"{v:g}: {n:,}" for v, n in zip(values.tolist(), counts.tolist(), strict=True))
    if len(values) > 5:
        spread = f"quartiles {', '.join(f'{q:.3g}' for q in np.quantile(rewards, [0, 0.25, 0.5, 0.75, 1]))}"
    step = rollouts.grading_s * facts.config.problems_per_batch * facts.config.group_size
    said = f"rewards {spread}; mean {rewards.mean():.3f}"
    said += f"; a grade takes {rollouts.grading_s * 1e3:.3g} ms, a step's {step:.2g} s"
    state = graded(rollouts.grading_s, SLOW_S, math.inf)
    yield _line(state, "rewards", said, f"set {CONFIG.reward.workers} or {CONFIG.reward.concurrency}")
    if empty := rollouts.empty:
        most, some = max(empty.values()), sum(value > 0 for value in empty.values())
        said = f"an empty answer is paid on {some} of {len(empty)} problems, {most:g} at most"
        state = "wrong" if most >= facts.config.evaluation.solved_at else "look" if some else "fine"
        yield _line(state, "empty answers", said, f"mend {CONFIG.reward.function}: it must pay nothing for no answer")
    if paid := [answer for answer in answers if answer.paid]:
        bare = sum(answer.unmarked for answer in paid)
        said = f"{bare:,} of {len(paid):,} paid answers were paid by the last number, which nothing marks"
        remedy = f"say in {CONFIG.prompts.suffix} how to give the answer, and set {CONFIG.reward.marked}=true"
        yield _line(graded(bare / len(paid), 0.1, 1.0), "last number", said, remedy)


def of_solving(config: RunConfig, rollouts: RolloutFacts) -> Iterator[Line]:
    """Whether the problems suit the model: how many are never solved, and which groups have a signal."""
    solved, samples = rollouts.rates.solved, rollouts.rates.samples
    if not len(solved):
        return
    never, always = int((solved == 0).sum()), int((solved == samples).sum())
    rate, most = rollouts.rates.rate, max(never, always) / len(solved)
    said = f"{never} of {len(solved)} problems were never solved in {samples} rollouts each, {always} always"
    which = "see to the answers that are not paid, bring easier ones" if never >= always else "bring harder ones"
    state = "wrong" if most >= 0.9 else "look" if most > 0.5 else "fine"
    yield _line(state, "solved", f"{said}; pass@1 {rate:.3f}", f"{which}, or cut those that suit it: {_curate(config)}")
    shares = {share.group_size: share.share for share in rollouts.shares}
    said = "groups with a signal: " + ", ".join(f"n = {n} {share:.0%}" for n, share in shares.items() if n <= 64)
    n = min(shares, key=lambda size: abs(size - config.group_size))
    said += f" (n = {n} by the mean rate alone: {1 - rate**n - (1 - rate) ** n:.0%})"
    remedy = f"set {CONFIG.group_size} where half of them have one, or cut the problems by isocompute_jax.curate"
    yield _line("look" if shares[n] < 0.25 else "fine", "signal", said, remedy)


def _curate(config: RunConfig) -> str:
    """The command that cuts the problems by what the model solves."""
    flags = [f"--model={config.model}", f"--problems={config.train_set}", "--out=curated", "--set=some=0.1:0.9"]
    flags += [f"--reward={config.reward.function}"] * bool(config.reward.function)
    flags += [f"--chat_template={config.prompts.chat_template}"] * (config.prompts.chat_template != "auto")
    sampling = config.sampling
    flags += [f"--max_prompt_tokens={sampling.max_prompt_tokens}", f"--max_tokens={sampling.max_tokens}"]
    return shlex.join(["python", "-m", "isocompute_jax.curate", *flags])


def _of_agreement(facts: Facts) -> Iterator[Line]:
    if (found := facts.agreement) is None:
        return
    mean, rule = found["logprob_difference"], facts.config.agreement
    said = (
        f"log-probabilities of sampler and learner differ by {mean:.2g} nats a token on average, by "
        f"{found['logprob_difference_max']:.2g} at most ({found['compared_tokens']:,} tokens)"
    )
    state = "wrong" if not mean <= rule.stop else "look" if mean > rule.warn else "fine"
    yield _line(state, "agreement", said, f"{LOOK_AT}; beyond {CONFIG.agreement.stop}={rule.stop:g} a run ends")


# --- as text


def text_of(found: Iterable[Line]) -> str:
    """The lines as a terminal shows them."""
    rows: list[str] = []
    for line in found:
        start = f"{line.state:5}  {line.what:17}"
        for first, text in ((start, line.said), (" " * len(start), line.remedy)):
            rows += textwrap.wrap(
                printable(text), WIDTH, initial_indent=f"{first} ", subsequent_indent=" " * (len(start) + 1),
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return "\n".join(rows)


def solving_table(rollouts: RolloutFacts) -> str:
    """Problems by how often they were solved, and groups with a signal by their size."""
    solved, samples, shares = rollouts.rates.solved, rollouts.rates.samples, rollouts.shares
    rates = solved / samples
    bands = {"never": int((rates == 0).sum())}
    for low, high in itertools.pairwise(BANDS):
        bands[f"to {high:g}"] = int(((rates > low) & (rates <= high) & (rates < 1)).sum())
    bands["always"] = int((rates == 1).sum())

    def row(title: str, cells: Iterable[str]) -> str:
        return f"  {title:17}" + "".join(f"{cell:>9}" for cell in cells)

    return "\n".join([
        row("problems solved", bands),
        row("", map(str, bands.values())),
        row("rollouts a group", (str(share.group_size) for share in shares)),
        row("with a signal", (f"{share.share:.0%}" for share in shares)),
        row("95% interval", (f"{share.low:.0%}-{share.high:.0%}" for share in shares)),
    ])  # fmt: skip


def page_of(facts: Facts, found: Iterable[Line]) -> str:
    """The lines and the answers to judge as a page that opens offline."""
    import jinja2  # training needs no templates

    template = (pathlib.Path(__file__).parent / "check.html.j2").read_text(encoding="utf-8")
    rollouts = facts.rollouts
    shown = [answer for answer in rollouts.answers if answer.question] if rollouts else []
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["shown"] = functools.partial(printable, lines=True)
    return environment.from_string(template).render(
        config=facts.config,
        lines=list(found),
        table=solving_table(rollouts) if rollouts is not None and rollouts.shares else "",
        sides={name: [answer for answer in shown if answer.paid == paid] for name, paid in SIDES.items()},
    )


def _rounded(tokens: float) -> int:
    """Up to two figures."""
    unit = 10 ** max(math.floor(math.log10(max(tokens, 1))) - 1, 0)
    return math.ceil(tokens / unit) * unit


def _bytes(count: float) -> str:
    return f"{count / GIB:.3g} GiB" if count >= GIB / 10 else f"{count / 2**20:.3g} MiB"
