"""From ungraded groups to graded ones, beside whatever else goes on.

`submit` returns at once with a future, whose group has its rewards. Where a group is graded depends on its grader:

- `inline`: in the caller's thread, before `submit` returns; nothing is started for these;
- `process`: in worker processes (`pool`), one call per completion, or per group;
- `loop`: on an event loop that asynchronous graders share (`loops`).

Equal completions of a group are graded once. A reward that fails is counted and logged, and `on_failure` says what
becomes of it. Results do not depend on what finishes when.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.records.tokens import check_url
from isocompute_jax.tasks.graders.protocol import UNMARKED, Failure, Grader, InvalidRewardError, Outcome
from isocompute_jax.tasks.graders.registry import SHIPPED, check_named_by_file, get_grader
from isocompute_jax.tasks.grading.loops import AsyncCalls, LoopThread
from isocompute_jax.tasks.grading.pool import WorkerPool, process_count, withheld

Decode = Callable[[Sequence[Sequence[int]]], list[str]]
"""Token ids of several completions -> their texts (`tokenizer.Tokenizer.decode`)."""

OnFailure = Literal["zero", "drop_group", "stop"]
CLOSE_S = 30.0
AGAIN_S = 2.0
LOGGED_FAILURES = 5
"""Log lines for each kind of failure."""
LOG = logging.getLogger(__name__)


@described
@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """What completions are worth, and how that is found out."""

    function: str = option(
        "",
        "What grades every problem: package.module:function (sync or async), a shipped grader's name, gym:NAME, "
        "http://host:port/path of a reward service, or an entry point's name. Empty: what the problem's task names.",
        flag="reward",
    )
    tasks: dict[str, str] = option(
        default_factory=dict, help="Task -> the same for its problems alone; goes before `function`.", flag=None
    )
    on_failure: OnFailure = option(
        "zero",
        "What becomes of a completion whose reward raises, hangs, dies or is not a finite number: zero, it is worth 0; "
        "drop_group, its group is left out of the update, and counts in C; stop, the run ends. Each is counted.",
        flag="reward_on_failure",
    )
    deadline_s: float = option(
        30.0, "Longest call of a grader, in seconds; then it is killed.", above=0, flag="reward_deadline_s"
    )
    workers: int = option(
        0,
        "Processes that grade, started when a grader needs one; 0 for half the cores, at most 32.",
        low=0,
        identity=False,
        flag="reward_workers",
    )
    concurrency: int = option(
        64,
        "Calls of one asynchronous reward, or requests to one reward service, at a time.",
        low=1,
        identity=False,
        flag="reward_concurrency",
    )
    allow: tuple[str, ...] = option(
        (),
        "Functions (package.module:function) and addresses of reward services that problems may name in `task`, beside "
        "shipped graders, gym:NAME and entry points. No other code is run, and no other address asked, because a file "
        "says so (docs/trust.md).",
        identity=False,
        flag="reward_allow",
    )
    environment: tuple[str, ...] = option(
        (),
        "Environment variables that worker processes get beside the few that programs need, such as OPENAI_API_KEY: "
        "this process's secrets are not theirs.",
        identity=False,
        flag="reward_environment",
    )
    marked: bool = option(
        False,
        "Pay exact, numeric and math only for an answer in a box or behind ####, `answer is` or `answer:`; without, "
        "metric/unmarked is the share of completions that are paid for another one.",
        flag="reward_marked",
    )

    def __post_init__(self) -> None:
        check(self)
        for name in (self.function, *self.tasks.values(), *self.allow):
            for address in name.split(","):
                if "://" in address:
                    check_url(address.strip(), str(CONFIG.reward.function))

    def name_for(self, task: str) -> str:
        """The name of the grader of a task's problems.

        Raises:
          InputError: the task is what grades them, and no problem may name that (see `allow`).
        """
        return self.tasks.get(task) or self.function or check_named_by_file(task, self.allow)

    def named_by(self, task: str) -> str:
        """Who names the grader of a task's problems: a field of the config, or their file."""
        if self.tasks.get(task):
            return str(CONFIG.reward.tasks)
        return str(CONFIG.reward.function) if self.function else "their file"

    @property
    def processes(self) -> int:
        """Worker processes at most."""
        return process_count(self.workers)


class FailureLog:
    """Says the first failures of each kind; used from any thread."""

    def __init__(self):
        self._counts: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def note(self, kind: str, text: str) -> None:
        """Logs a failure, unless there were many of its kind."""
        with self._lock:
            self._counts[kind] += 1
            seen = self._counts[kind]
        if seen <= LOGGED_FAILURES:
            rest = "; further ones are only counted" if seen == LOGGED_FAILURES else ""
            LOG.warning("%s%s", text, rest)


class Grades(Protocol):
    """What gives groups their rewards: `Grading`, or several of them."""

    @property
    def stops(self) -> bool:
        """Whether a reward that fails ends the run."""
        ...

    def submit(
        self, group: RolloutGroup, problem: Problem, *, on_failure: OnFailure | None = None
    ) -> concurrent.futures.Future[RolloutGroup]:
        """Grades a group; see `Grading.submit`."""
        ...


class Grading:
    """Gives groups their rewards; used from any thread.

    Args:
      config: which grader for which task, and how it is run.
      decode: token ids -> texts.
    """

    def __init__(self, config: RewardConfig, decode: Decode):
        self._config = config
        self._decode = decode
        self._failures = FailureLog()
        self._starting = threading.Lock()
        self._thread: LoopThread | None = None
        self._tasks: set[asyncio.Task] = set()
        self._pool: WorkerPool | None = None
        self._calls: AsyncCalls | None = None

    @property
    def stops(self) -> bool:
        """Whether a reward that fails ends the run."""
        return self._config.on_failure == "stop"

    def check(self, problems: Iterable[Problem]) -> None:
        """Says who grades what, and calls every grader that is not shipped once.

        With an empty completion, as a model may give one any time. Worker processes are started on the way, so that
        the first step need not wait for them.

        Raises:
          InputError: a grader fails at it; says how.
        """
        first: dict[str, Problem] = {}
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        for problem in problems:
            name = self._config.name_for(problem.task)
            first.setdefault(name, problem)
            counts[name, self._config.named_by(problem.task)] += 1
        who = [f"{name} grades {number:,} problems ({field} says so)" for (name, field), number in counts.items()]
        LOG.info("rewards: %s", "; ".join(who))
        graders = {name: get_grader(name) for name in first}
        in_processes = [name for name, grader in graders.items() if grader.runs == "process"]
        if in_processes:
            self._start().submit(self._warm(in_processes))
        for name, problem in first.items():
            if name in SHIPPED:
                continue
            [outcome] = self._start().submit(self._outcomes(name, problem, [""])).result()
            if isinstance(outcome, Failure):
                hint = withheld(outcome.message, self._config.environment)
                raise InputError(
                    f"reward {name} {outcome.what} when it was tried on problem {problem.id!r} and an empty "
                    f"completion, which a model may give: {outcome.line}{hint}"
                )

    def submit(
        self, group: RolloutGroup, problem: Problem, *, on_failure: OnFailure | None = None
    ) -> concurrent.futures.Future[RolloutGroup]:
        """Grades a group.

        Args:
          group: ungraded.
          problem: what it is of.
          on_failure: in place of the config's.

        Returns:
          A future of the group with its rewards. It raises RunError where a reward failed and the policy is `stop`,
          or where nothing can be graded.
        """
        name, policy = self._config.name_for(problem.task), on_failure or self._config.on_failure
        keys = [completion.tokens.tobytes() for completion in group.completions]
        distinct = {key: completion.tokens for key, completion in zip(keys, group.completions, strict=True)}
        texts = self._decode([tokens.tolist() for tokens in distinct.values()])
        places = {key: place for place, key in enumerate(distinct)}
        order = np.array([places[key] for key in keys])
        grader = get_grader(name)
        finish = functools.partial(self._finish, group, problem, name, order, policy)
        if grader.runs != "inline":
            return self._start().submit(self._graded(name, problem, texts, finish))
        done: concurrent.futures.Future[RolloutGroup] = concurrent.futures.Future()
        try:
            done.set_result(finish([_inline(grader, problem, text) for text in texts]))
        except RunError as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Ends workers and threads; what was not graded is lost."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            thread.submit(self._close()).result(CLOSE_S)
        except concurrent.futures.TimeoutError:
            LOG.warning("graders did not end within %g s; they end with this process", CLOSE_S)
        thread.close()

    def _start(self) -> LoopThread:
        """The thread on whose loop everything but inline graders is run."""
        with self._starting:
            if self._thread is None:
                self._thread = LoopThread("graders")
            return self._thread

    async def _warm(self, names: Sequence[str]) -> None:
        with self._given_up_at_the_end():
            await self._workers().warm(names)

    @contextlib.contextmanager
    def _given_up_at_the_end(self) -> Iterator[None]:
        """Around what `close` cancels: tasks of ours, not those by which asyncio starts a process."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def _workers(self) -> WorkerPool:
        if self._pool is None:
            self._pool = WorkerPool(
                self._config.processes, self._config.deadline_s, environment=self._config.environment
            )
        return self._pool

    def _async_calls(self) -> AsyncCalls:
        if self._calls is None:
            self._calls = AsyncCalls(self._config.concurrency, self._config.deadline_s)
        return self._calls

    async def _graded(
        self,
        name: str,
        problem: Problem,
        texts: Sequence[str],
        finish: Callable[[Sequence[Outcome]], RolloutGroup],
    ) -> RolloutGroup:
        with self._given_up_at_the_end():
            outcomes = await self._outcomes(name, problem, texts)
        return finish(outcomes)

    async def _outcomes(self, name: str, problem: Problem, texts: Sequence[str]) -> list[Outcome]:
        """What each text is worth, by a grader that is not inline."""
        grader = get_grader(name)
        if grader.runs == "inline":
            return [_inline(grader, problem, text) for text in texts]
        size = grader.batch or len(texts)
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        runner = self._async_calls() if grader.runs == "loop" else self._workers()
        calls = [runner.grade(grader, [problem] * len(part), part) for part in parts]
        answers = await asyncio.gather(*calls)
        return [
            outcome
            for part, answer in zip(parts, answers, strict=True)
            for outcome in ([answer] * len(part) if isinstance(answer, Failure) else answer)
        ]

    def _finish(
        self,
        group: RolloutGroup,
        problem: Problem,
        name: str,
        order: np.ndarray,
        policy: OnFailure,
        outcomes: Sequence[Outcome],
    ) -> RolloutGroup:
        """The group with its rewards; `order` [G] says which of the outcomes each completion has."""
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        for failure in failures:
            self._log(failure, problem, name)
        if failures and policy == "stop":
            raise RunError(
                f"reward {name} {failures[0].what} on problem {problem.id!r} ({CONFIG.reward.on_failure} = 'stop'): "
                f"{failures[0].message.strip()}"
            )
        metrics = [{} if isinstance(outcome, Failure) else outcome.metrics for outcome in outcomes]
        refused = [self._config.marked and found.get(UNMARKED, 0) > 0 for found in metrics]
        rewards = [
            0.0 if isinstance(outcome, Failure) or no else outcome.reward
            for outcome, no in zip(outcomes, refused, strict=True)
        ]
        why = {i: f"{found.what}: {found.line}" for i, found in enumerate(outcomes) if isinstance(found, Failure)}
        return dataclasses.replace(
            group,
            rewards=np.array(rewards, np.float32)[order],
            task=problem.task,
            reward_metrics={key: values[order] for key, values in metric_columns(metrics).items()},
            failures={place: why[outcome] for place, outcome in enumerate(order.tolist()) if outcome in why},
            dropped=bool(failures) and policy == "drop_group",
        )

    def _log(self, failure: Failure, problem: Problem, name: str) -> None:
        """Logs a failure, unless there were many of its kind."""
        self._failures.note(failure.kind, f"reward {name} {failure.what} on problem {problem.id!r}: {failure.line}")

    async def _close(self) -> None:
        if self._calls is not None:
            await self._calls.close()
        # What is being graded is given up first: each call ends its own worker.
        while self._tasks:  # more than once: in Python 3.11 wait_for loses a cancellation that meets a result
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=AGAIN_S)
        if self._pool is not None:
            await self._pool.close()
        self._pool = self._calls = None


def graded(groups: Iterable[RolloutGroup], problems: Mapping[str, Problem], grading: Grades) -> list[RolloutGroup]:
    """Every group with its rewards, in order; grading goes on while `groups` is read.

    A reward that failed is worth 0 unless the policy is `stop`: nothing is trained on these groups.

    Args:
      groups: ungraded.
      problems: those that were asked for, and perhaps others, by id.
      grading: grades them.
    """
    policy = "stop" if grading.stops else "zero"
    futures = [grading.submit(group, problems[group.problem_id], on_failure=policy) for group in groups]
    return [future.result() for future in futures]


def _inline(grader: Grader, problem: Problem, text: str) -> Outcome:
    try:
        return grader.grade(problem, text)
    except InvalidRewardError as error:
        return Failure("invalid", str(error))
    except Exception as error:
        return Failure.raised(error)


def metric_columns(found: Sequence[Mapping[str, float]]) -> Mapping[str, np.ndarray]:
    """Name -> a value [G] for each of G completions, NaN where it has none of this name."""
    columns: dict[str, np.ndarray] = collections.defaultdict(lambda: np.full(len(found), np.nan))
    for place, metrics in enumerate(found):
        for name, value in metrics.items():
            columns[name][place] = value
    return dict(sorted(columns.items()))
