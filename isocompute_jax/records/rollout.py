"""Problems and the rollouts sampled for them. Tokens in, tokens and log-probabilities out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from isocompute_jax.records.errors import InputError

FinishReason = Literal["stop", "length"]
LOWEST, ROUNDING = -104.0, 1e-4
"""Log-probabilities of drawn tokens lie between: float32 has no smaller probability, and rounds logits of up to a
thousand by less."""


Message = Mapping[str, Any]
"""One message of a chat: `role` and `content`, both text, and whatever else a chat template reads."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One verifiable problem."""

    id: str  # unique within its problem set; keys the random numbers of its rollouts.
    # the text the model continues, or the messages of a chat; empty where there are only `prompt_tokens`.
    prompt: str | tuple[Message, ...]
    answer: str  # what the task's verifier compares a completion with.
    task: str  # name of the task that grades it.
    # rates measured by curation, e.g. `{"avg@16": 0.31}`.
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    # the prompt as token ids, which the model then reads as they stand; empty for a prompt that is yet to be rendered
    # and encoded.
    prompt_tokens: tuple[int, ...] = ()
    # the other columns of its row, as JSON has them, for reward functions that want more than the answer.
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """16 bytes of what is asked and how it is graded: ids may be those of lines, alike in any two files."""
        extra = {name: value for name, value in self.extra.items() if name != "mean_reward"}  # which curation adds
        asked = [self.prompt, self.prompt_tokens, self.answer, self.task, extra]
        text = json.dumps(asked, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    @property
    def text(self) -> str:
        """What is asked, as plain text: of a chat what its user says, of bare token ids these ids."""
        if not self.prompt:
            return " ".join(map(str, self.prompt_tokens))
        if isinstance(self.prompt, str):
            return self.prompt
        asked = [message["content"] for message in self.prompt if message["role"] == "user"]
        return "\n\n".join(asked or [message["content"] for message in self.prompt])


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What an environment said of a rollout, turn by turn."""

    begins: tuple[int, ...] = ()  # tokens of the completion before the first of each turn
    ends: tuple[int, ...] = ()  # and up to its last; a turn that is being drawn has none yet
    rewards: tuple[float, ...] = ()  # of each turn that has ended
    done: bool = False  # whether the environment ended it, and not a bound
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    failure: str = ""  # why it has no reward: how the environment failed


@dataclasses.dataclass(frozen=True, eq=False)
class Completion:
    """One sampled completion of T tokens (T >= 1), as the sampler drew it; text is never re-tokenised.

    It is a sequence of segments, each drawn by the policy or inserted between two of them (`sampling.turns`). Inserted
    tokens are context, as a prompt is: the model reads them, and they are neither trained on nor counted as drawn.
    """

    tokens: np.ndarray  # [T] int32 token ids, the end-of-sequence token included when it was drawn.
    # [T] float32 log-probabilities (nats) of the distribution that was sampled from; 0 on context.
    logprobs: np.ndarray
    mask: np.ndarray  # [T] bool, True on tokens the policy chose, False on context.
    # [T] int32 version of the weights behind each token; on context that of the next drawn one.
    policy_versions: np.ndarray
    finish_reason: FinishReason  # `stop` when a stop token ended it, `length` when it was cut.
    # [S + T - 1, L, A] integers, of a mixture of experts: those that the sampler chose for each token that it read,
    # prompt (S tokens) and completion but its last, in each layer; -1 where it is not known. None when the sampler
    # was not asked, or cannot say.
    experts: np.ndarray | None = None
    episode: Episode | None = None  # of a rollout that an environment answers
    # [T, K] int32 ids of the tokens that could be drawn at each place, -1 where there were fewer, and on context; None
    # when `top_k` was 0, or the sampler cannot say.
    support: np.ndarray | None = None

    @classmethod
    def drawn(
        cls,
        tokens: np.ndarray,
        logprobs: np.ndarray,
        policy_versions: np.ndarray,
        finish_reason: FinishReason,
        experts: np.ndarray | None = None,
        support: np.ndarray | None = None,
    ) -> Completion:
        """A completion whose every token the policy chose."""
        return cls(
            tokens, logprobs, np.ones(len(tokens), bool), policy_versions, finish_reason, experts, support=support
        )

    def support_of(self, top_k: int) -> np.ndarray:
        """`support` as [T, top_k], filled up with -1.

        Raises:
          InputError: the sampler did not say it, says more, or says that a token it drew could not be drawn.
        """
        if self.support is None or self.support.shape[1] > top_k:
            says = "does not say" if self.support is None else f"says of more than {top_k} tokens"
            raise InputError(
                f"config.sampling.top_k = {top_k}: the sampler {says} which could be drawn. Set top_k to 0 and "
                "config.sampling.top_p to 1, or take one that says it: this library's in process, or a stock vLLM with "
                "--return-sampling-mask"
            )
        if not np.all((self.support == self.tokens[:, None]).any(axis=1) | ~self.mask):
            raise InputError("the sampler drew a token of which it says that it could not be drawn")
        return np.pad(self.support, ((0, 0), (0, top_k - self.support.shape[1])), constant_values=-1)

    @property
    def drawn_tokens(self) -> int:
        """Tokens that the policy chose."""
        return int(np.count_nonzero(self.mask))


@dataclasses.dataclass(frozen=True, eq=False)
class RolloutGroup:
    """The G completions of one problem in one step, with their rewards once graded."""

    problem_id: str  # names the problem, as in the request.
    step: int  # the step whose random numbers drew it.
    prompt_tokens: np.ndarray  # [S] int32.
    completions: tuple[Completion, ...]  # G completions, in rollout-index order.
    rewards: np.ndarray | None = None  # [G] float32, or None before grading.
    # as in the request.
    first_rollout: int = 0
    turn: int = 0
    task: str = ""  # what its problem's task is, once graded.
    # name -> [G] what the grader measured beside the reward; NaN where it did not.
    reward_metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    # completion -> why its reward is not known, because it raised or timed out, say; 0 stands for it.
    failures: Mapping[int, str] = dataclasses.field(default_factory=dict)
    dropped: bool = False  # whether the group is left out of the update for that.
    # rollouts in each round of its step, 0 where it got none, if they were dealt in rounds; else empty.
    rounds: tuple[int, ...] = ()

    @property
    def reward_failures(self) -> int:
        """Completions whose reward is not known."""
        return len(self.failures)

    @property
    def num_tokens(self) -> int:
        """Tokens that were drawn for the group (prompt and context excluded)."""
        return sum(completion.drawn_tokens for completion in self.completions)
