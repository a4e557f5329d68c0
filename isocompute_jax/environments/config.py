"""Which environment answers a run's rollouts, and within which bounds."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from isocompute_jax.options import check, described, field_of, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks.grading.pool import process_count
from isocompute_jax.tasks.prompts import WriteAs, parse_options


@described
@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """An environment with state: it answers the policy turn by turn, and rewards it (docs/environments.md)."""

    name: str = option(
        "",
        "What answers the policy's turns: a shipped environment (number_hunt, python), package.module:Class, or "
        "verifiers:TASKSET. Empty: rollouts have one turn, and a grader says what they are worth.",
        flag="environment",
    )
    options: dict[str, Any] = option(
        default_factory=dict,
        help="Keywords of the environment's class, such as largest=15.",
        parse=parse_options,
        flag="environment_options",
    )
    turns: int = option(8, "Turns of the policy in a rollout, at most.", low=1, flag=None)
    turn_tokens: int = option(
        64, "Longest turn of the policy, in tokens; what is cut there is answered too.", low=1, flag=None
    )
    observation_tokens: int = option(
        256,
        "Longest observation, in tokens, with what a chat template writes around it; of a longer one the end of the "
        "text is left out, which is counted.",
        low=1,
        flag=None,
    )
    stop: tuple[str, ...] = option(
        (),
        "Texts that end a turn, such as </tool>, beside the environment's own and the model's end of an answer; each "
        "may be several tokens.",
        flag=None,
    )
    write_as: WriteAs = option(
        "auto",
        "How observations are put into the context: user or tool, as a message of that role by the chat template; "
        "text, as they are; auto, as a user's message where the prompt is a chat.",
        flag=None,
    )
    turn_credit: Literal["rollout", "turn"] = option(
        "rollout",
        "What each turn's tokens are credited with: rollout, the rewards of all turns; turn, those of this and the "
        "later ones, less what the group's rollouts got from their turn of that number on.",
        flag=None,
    )
    deadline_s: float = option(
        30.0, "Longest time of an environment's step, in seconds; then the rollout has failed.", above=0, flag=None
    )
    workers: int = option(
        0,
        "Processes that play environments of plain functions; 0 for half the cores, at most 32.",
        low=0,
        identity=False,
        flag=None,
    )
    concurrency: int = option(
        1024,
        "Steps of asynchronous environments at a time.",
        low=1,
        identity=False,
        flag=None,
    )

    def __post_init__(self) -> None:
        check(self)
        if wrong := next((text for text in self.stop if text[:1] + text[-1:] in ("[]", "()")), ""):
            raise InputError(
                field_of(self, "stop"), f""" has {wrong!r} as one text: write several as '["=", "</move>"]'"""
            )
        if "" in self.stop:
            raise InputError(field_of(self, "stop"), " has an empty text, which every turn begins with; leave it out")

    @property
    def credited_turns(self) -> int:
        """Turns of a rollout, at most, that are credited each by itself; 0 where rollouts are."""
        return self.turns if self.turn_credit == "turn" else 0

    @property
    def processes(self) -> int:
        """Worker processes at most."""
        return process_count(self.workers)
