"""What one look at a model, its problems and its reward finds before anything is trained: facts, without words.

What a run would refuse is caught here with its own sentence, and the look goes on with what is left. `lines` says what
the facts come to.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import pathlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from isocompute_jax import learner, model, sharding
from isocompute_jax.experiment import inputs
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.evaluation import compare
from isocompute_jax.experiment.layouts import make_lay_out, shape_of
from isocompute_jax.experiment.memory import machine_memory
from isocompute_jax.experiment.samplers import MOMENTS, device_of, held_bytes
from isocompute_jax.model import ModelConfig
from isocompute_jax.pilot.measure import BaseRates, SignalShare, measure_model, signal_shares
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.sampling.in_process import UnitShape, unit_bytes
from isocompute_jax.tasks import Grading, Prompts, Tokenizer, get_grader, load_tokenizer
from isocompute_jax.tasks.graders.protocol import UNMARKED
from isocompute_jax.tasks.grading.engine import OnFailure

OPENED, CLOSED = "<think>", "</think>"
SHOWN = 20
"""Answers of either kind that are kept with their texts, for a person to judge."""
ANSWER = 128
"""Tokens of the longest answer where nobody has said how long it may be."""
COMPARED = (8, 2)
"""Problems, and rollouts of each, whose log-probabilities are computed again."""


Refused = dict[str, InputError | RunError]
"""What of -> the error that a run would end with."""


@dataclasses.dataclass(frozen=True, eq=False)
class PromptFacts:
    """Of the prompts of all sets, as the model reads them."""

    lengths: np.ndarray  # [P] tokens
    chats: int  # written by the chat template
    warned: Mapping[str, str]  # `Prompts.warned`
    bos: str  # the token's text; empty where there is none, or it ends texts too, or begins every turn
    puts_bos: bool  # whether the tokenizer puts it before plain texts
    without_bos: int
    doubled_bos: int
    ending: int  # whose last token ends a completion


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One rollout. Question, gold and text are empty beyond the first `SHOWN` that are paid, and that are not."""

    problem: str
    reward: float
    paid: bool  # as a solved problem is (`evaluation.solved_at`)
    tokens: int
    cut: bool
    failure: str
    unmarked: bool  # paid for an answer that nothing marks
    thought: str  # `open`, `closed`, or empty where none is opened
    question: str
    gold: str
    text: str


@dataclasses.dataclass(frozen=True, eq=False)
class RolloutFacts:
    """Of what the base model answered."""

    answers: Sequence[Rollout]
    rates: BaseRates
    shares: Sequence[SignalShare]
    grading_s: float  # a grade, with as many at once as the run has
    empty: Mapping[str, float]  # problem -> what an empty answer to it is paid


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """All that was found; None where something before it was refused."""

    config: RunConfig
    refused: Refused  # what of -> the error that a run would end with
    shape: ModelConfig | None
    tokenizer: Tokenizer | None
    problems: int  # to train on, that can be graded
    ungraded: int  # that no grader can pay
    shared: Mapping[str, tuple[int, int]]  # held-out set -> problems of it that are trained on too, of how many
    prompts: PromptFacts | None = None
    memory: Mapping[str, float] | None = None  # what takes it -> bytes of a device; `room`: what it has
    rollouts: RolloutFacts | None = None
    agreement: Mapping[str, float | int] | None = None  # as `evaluation.compare` has it


def look(
    config: RunConfig,
    directory: pathlib.Path,
    *,
    problems: int,
    samples: int,
    stops: bool,
    left_open: Collection[str] = (),
) -> Facts:
    """Reads, renders, draws and grades, and trains nothing.

    Args:
      config: of the run.
      directory: for the record of what is drawn.
      problems: that rollouts are drawn of, spread over the training set.
      samples: rollouts of each.
      stops: whether what is refused is raised, as by a pilot, which has asked for all that a run refuses.
      left_open: fields of `sampling` that nobody has set: lengths, which become those of the problems and the model.

    Raises:
      InputError, RunError: something is refused, and `stops`.
    """
    refused = None if stops else Refused()
    shape = tokenizer = asked = memory = None
    with _refusing(refused, "model"):
        shape = inputs.model_config_of(config)
        inputs.check_length(config, shape)
    with _refusing(refused, "tokenizer"):
        tokenizer = load_tokenizer(config.model)
        if shape is not None:
            inputs.check_vocabulary(config.model, tokenizer, shape.vocab_size)
    with _refusing(refused, "reward"):
        inputs.check_graders(config)
    train, ungraded = _training_problems(config, refused)
    sets, most = {}, config.evaluation.max_problems or None
    for name, path in inputs.held_out_sets(config).items():
        with _refusing(refused, "held out"):
            sets[name] = inputs.load_problems(path, grader_name=inputs.grader_names(config))[:most]
    fitting: list[Problem] = []
    if tokenizer is not None and train:
        prompts = Prompts(tokenizer, config.prompts)
        with _refusing(refused, "prompts"), _unlogged():
            encoded = prompts.encode([*train, *(problem for own in sets.values() for problem in own)])
            asked = prompt_facts(prompts, encoded, train)
            if shape is not None:
                config = _with_lengths(config, left_open, int(asked.lengths.max()), shape)
            limit = config.sampling.max_prompt_tokens
            fitting = [own for own, ids in zip(train, encoded, strict=False) if 1 <= len(ids) <= limit]
    if refused == {} and asked is not None and not ungraded and asked.lengths.max() <= limit:  # else it says no more
        with _refusing(refused, "run"), _unlogged():
            inputs.read_inputs(config.resolved())
    if shape is not None:
        with _refusing(refused, "memory"):
            memory = _memory(config, shape)
    shared = {name: (count, len(sets[name])) for name, count in inputs.trained_on(train, sets).items()}
    known = {} if refused is None else refused  # what is refused below stands in it too
    facts = Facts(config, known, shape, tokenizer, len(train), ungraded, shared, asked, memory)
    if shape is None or not fitting or known.keys() & {"model", "tokenizer", "reward", "prompts"}:
        return facts
    count = min(problems, len(fitting))
    spread = [fitting[i * len(fitting) // count] for i in range(count)]
    return _with_rollouts(facts, refused, prompts, spread, directory, samples)


def _with_rollouts(
    facts: Facts,
    refused: Refused | None,
    prompts: Prompts,
    problems: Sequence[Problem],
    path: pathlib.Path,
    samples: int,
) -> Facts:
    """With what the model answers to problems, and what that is worth."""
    config, shape = facts.config, facts.shape
    assert shape is not None
    with contextlib.closing(_Seen(config, prompts)) as seen, _refusing(refused, "sampler"):
        with _refusing(refused, "grading"):
            seen.check(problems)
        measure_model(config, shape, prompts, problems, path, samples=samples, grading=seen)
        if "grading" not in facts.refused:
            seen.grade_nothing(problems)
    if not seen.answers:
        return facts
    with _refusing(refused, "agreement"):
        facts = dataclasses.replace(facts, agreement=_agreement(config, shape, seen.groups))
    return dataclasses.replace(facts, rollouts=seen.facts(problems, samples))


def _with_lengths(config: RunConfig, left_open: Collection[str], longest: int, shape: ModelConfig) -> RunConfig:
    """With room for the longest prompt, and for answers of up to `ANSWER` tokens, where these are left open."""
    chosen = {"max_prompt_tokens": longest, "max_tokens": max(min(ANSWER, shape.max_positions - longest), 1)}
    sampling = dataclasses.replace(config.sampling, **{name: chosen[name] for name in left_open})
    return dataclasses.replace(config, sampling=sampling)


@contextlib.contextmanager
def _refusing(refused: Refused | None, what: str) -> Iterator[None]:
    """Around what a run may refuse: the error is kept, unless another of its words is, or raised."""
    try:
        yield
    except (InputError, RunError) as error:
        if refused is None:
            raise
        if str(error) not in map(str, refused.values()):
            refused.setdefault(what, error)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Logs nothing meanwhile: what is warned of becomes a line."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _training_problems(config: RunConfig, refused: Refused | None) -> tuple[list[Problem], int]:
    """The problems that can be graded, and how many cannot, by their files or by `Grader.fault`."""
    found: dict[str, Problem] = {}
    ungraded = 0
    for path in config.curriculum.train_sets.values() or [config.train_set]:
        size = 0 if config.curriculum.train_sets else config.problem_set_size
        with _refusing(refused, "problems"):
            try:
                problems = inputs.load_problems(path, size, grader_name=inputs.grader_names(config))
            except InputError:
                every = inputs.load_problems(path, size, grader_name=None)
                problems = [problem for problem in every if _gradable(problem, config)]
                ungraded += len(every) - len(problems)
                found.update((problem.id, problem) for problem in problems)
                raise
            found.update((problem.id, problem) for problem in problems)
    return list(found.values()), ungraded


def _gradable(problem: Problem, config: RunConfig) -> bool:
    with contextlib.suppress(InputError):
        return bool(problem.answer) and get_grader(config.reward.name_for(problem.task)).fault(problem) is None
    return False


def prompt_facts(prompts: Prompts, encoded: Sequence[np.ndarray], problems: Sequence[Problem]) -> PromptFacts:
    """Looks at prompts as they are sampled from; the first are those of `problems`, which say what is a chat."""
    tokenizer = prompts.tokenizer
    bos = tokenizer.backend.token_to_id(tokenizer.bos) if tokenizer.bos else None
    if bos in tokenizer.eos_ids or (bos is not None and tokenizer.chat is not None and _in_turns(tokenizer)):
        bos = None  # of GPT-2, say, whose texts begin with nothing
    empty = tokenizer.backend.encode("").ids
    counts = np.array([np.count_nonzero(ids == bos) for ids in encoded]) if bos is not None else np.ones(1, int)
    return PromptFacts(
        lengths=np.array([len(ids) for ids in encoded]),
        chats=sum(map(prompts.is_chat, problems)),
        warned=dict(prompts.warned),
        bos="" if bos is None else tokenizer.bos,
        puts_bos=bos is not None and empty[:1] == [bos],
        without_bos=0 if bos is None else sum(ids[:1].tolist() != [bos] for ids in encoded),
        doubled_bos=int(np.count_nonzero(counts > 1)),
        ending=sum(int(ids[-1]) in tokenizer.eos_ids for ids in encoded if len(ids)),
    )


def _in_turns(tokenizer: Tokenizer) -> bool:
    """Whether the chat template writes the token that texts begin with before every turn, as ChatML's does."""
    assert tokenizer.chat is not None
    one = [{"role": "user", "content": "?"}]
    with contextlib.suppress(Exception):  # a template is a program, and raises what it likes
        once, again = (tokenizer.chat(chat) for chat in (one, [*one, {"role": "assistant", "content": "!"}, *one]))
        return again.count(tokenizer.bos) > once.count(tokenizer.bos)
    return False


def _thought(text: str) -> str:
    if OPENED not in text:
        return ""
    return "open" if text.rfind(OPENED) > text.rfind(CLOSED) else "closed"


class _Seen(Grading):
    """Grades rollouts, and keeps of them what is looked at."""

    def __init__(self, run: RunConfig, prompts: Prompts):
        super().__init__(run.reward, prompts.tokenizer.decode)
        self._run, self._prompts = run, prompts
        self._spans: list[tuple[float, float]] = []
        self._kept = {True: SHOWN, False: SHOWN}
        self._empty: dict[str, float] = {}
        self.answers: list[Rollout] = []
        self.groups: list[RolloutGroup] = []  # what agreement is measured on

    def submit(
        self, group: RolloutGroup, problem: Problem, *, on_failure: OnFailure | None = None
    ) -> concurrent.futures.Future[RolloutGroup]:
        """As in `Grading`."""
        start = time.perf_counter()
        future = super().submit(group, problem, on_failure=on_failure)
        future.add_done_callback(lambda done: self._note(done, problem, start))
        return future

    def grade_nothing(self, problems: Sequence[Problem]) -> None:
        """Grades an empty answer to each problem."""
        eos = np.array(self._prompts.tokenizer.eos_ids[:1], np.int32)
        nothing = Completion.drawn(eos, np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")
        for problem in problems:
            group = RolloutGroup(problem.id, 0, eos, (nothing,))
            graded = super().submit(group, problem, on_failure="zero").result()
            if graded.rewards is not None and not graded.failures:
                self._empty[problem.id] = float(graded.rewards[0])

    def _note(self, done: concurrent.futures.Future[RolloutGroup], problem: Problem, start: float) -> None:
        self._spans.append((start, time.perf_counter()))
        if done.cancelled() or done.exception() is not None:
            return
        group = done.result()
        assert group.rewards is not None
        few = group.completions[: COMPARED[1]]
        if not self.groups or (len(self.groups) < COMPARED[0] and len(few) == len(self.groups[0].completions)):
            self.groups.append(RolloutGroup(group.problem_id, group.step, group.prompt_tokens, few))
        ids = [group.prompt_tokens, *(completion.tokens for completion in group.completions)]
        question, *texts = self._prompts.tokenizer.backend.decode_batch(
            [each.tolist() for each in ids], skip_special_tokens=False
        )
        unmarked = group.reward_metrics.get(UNMARKED, np.zeros(len(texts)))
        for i, (completion, text) in enumerate(zip(group.completions, texts, strict=True)):
            reward, failure = float(group.rewards[i]), group.failures.get(i, "")
            paid = not failure and reward >= self._run.evaluation.solved_at
            kept = not failure and self._kept[paid] > 0
            self._kept[paid] -= kept
            self.answers.append(
                Rollout(
                    problem.id, reward, paid, len(completion.tokens), completion.finish_reason == "length", failure,
                    unmarked[i] > 0, _thought(question + text),
                    *((question, problem.answer, text) if kept else ("", "", "")),
                )
            )  # fmt: skip

    def facts(self, problems: Sequence[Problem], samples: int) -> RolloutFacts:
        """What was drawn, once all is."""
        of: dict[str, list[Rollout]] = {problem.id: [] for problem in problems}
        for answer in self.answers:
            of[answer.problem].append(answer)
        whole = [own for own in of.values() if len(own) == samples and not all(answer.failure for answer in own)]
        rates = BaseRates(np.array([sum(answer.paid for answer in own) for own in whole], int), samples)
        busy = last = 0.0
        for start, end in sorted(self._spans):
            busy, last = busy + max(0.0, end - max(start, last)), max(last, end)
        shares = signal_shares(rates) if whole else []
        return RolloutFacts(self.answers, rates, shares, busy / len(self.answers), self._empty)


def _agreement(config: RunConfig, shape: ModelConfig, groups: Sequence[RolloutGroup]) -> dict[str, float | int]:
    """What the sampler's log-probabilities differ by from the learner's, of the same weights."""
    mesh, loss = inputs.make_mesh(config), dataclasses.replace(config.loss, routing="own")
    config, sizes = dataclasses.replace(config, loss=loss), (len(groups), len(groups[0].completions))
    shardings = None if mesh is None else model.param_shardings(shape, mesh)
    params = model.load_params(config.model, shape, shardings=shardings)
    scores = learner.make_score(
        shape, temperature=config.sampling.temperature, chunk_tokens=loss.chunk_tokens, mesh=mesh
    )
    score = learner.make_scorer(scores, mesh=mesh)
    lay_out = make_lay_out(config, shape, *sizes, mesh, batches=1, what="the agreement check", own_rows=False)
    return compare(groups, lambda batch: sharding.to_host(score(params, learner.place_batch(batch, mesh))), lay_out)


def _memory(config: RunConfig, shape: ModelConfig) -> dict[str, float]:
    """Bytes of a device at the longest prompt and answer, by what takes them, and what there is (`room`)."""
    mesh, sampling = inputs.make_mesh(config), config.sampling
    masters, copy = held_bytes(shape, mesh)
    batch = shape_of(config, shape, config.problems_laid_out, config.group_size, mesh, block=config.block)
    device, lengths = device_of(mesh), {"prompt": sampling.max_prompt_tokens, "tokens": sampling.max_tokens}
    return {
        "weights": masters * (1 + MOMENTS[config.optimizer.moments] + bool(config.loss.kl_coef)) + copy,
        "batch": batch.least_bytes / sharding.shards(mesh, batch.axis),
        "rollout": unit_bytes(shape, UnitShape(1, 1), **lengths, tensor=config.mesh.tensor),
        "room": machine_memory() if device is None else device.usable,
    }
