"""What rewards a run gives, where they are computed, and what becomes of those that fail."""

from __future__ import annotations

import dataclasses
import os
from typing import Literal

from isocompute_jax.options import check, described, field_of, option
from isocompute_jax.records.errors import CONFIG, InputError
from isocompute_jax.records.tokens import check_url
from isocompute_jax.tasks.graders.registry import check_named_by_file

OnFailure = Literal["zero", "drop_group", "stop"]
MOST_WORKERS = 32


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
        30.0, "Longest time of one call of a grader, in seconds; then it is killed.", flag="reward_deadline_s"
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

    def __post_init__(self) -> None:
        check(self)
        for name in (self.function, *self.tasks.values(), *self.allow):
            for address in name.split(","):
                if "://" in address:
                    check_url(address.strip(), str(CONFIG.reward.function))
        if not self.deadline_s > 0:
            raise InputError(field_of(self, "deadline_s"), f" = {self.deadline_s} must be above 0")

    def name_for(self, task: str) -> str:
        """The name of the grader of a task's problems.

        Raises:
          InputError: the task is what grades them, and no problem may name that (see `allow`).
        """
        said = self.tasks.get(task) or self.function
        return said or check_named_by_file(task, self.allow)

    def said_by(self, task: str) -> str:
        """Who says which grader a task's problems have."""
        if self.tasks.get(task):
            return str(CONFIG.reward.tasks)
        return str(CONFIG.reward.function) if self.function else "their file"

    @property
    def processes(self) -> int:
        """Worker processes at most."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.workers or max(1, min(MOST_WORKERS, cores // 2))
