"""Fields of what a step samples, trains on and computes with: groups of `RunConfig`."""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.learner import CreditConfig
from isocompute_jax.model import ATTENTION_HELP, HEAD_HELP, REMAT_HELP, AttentionKernel, HeadPrecision, Remat
from isocompute_jax.options import check, described, field_of, option
from isocompute_jax.records.errors import InputError


class Group:
    """A group of fields, checked as soon as it is made."""

    def __post_init__(self) -> None:
        check(self)


END_PHRASE = "\n\nOkay, time is up. Let me stop thinking and give the final answer now.\n</think>\n\n"


@described
@dataclasses.dataclass(frozen=True)
class ThinkingConfig(Group):
    """Forced interruption of thinking (ScaleRL, arXiv 2510.13786): off while `high` is 0."""

    low: int = option(0, "Least number of tokens after which thinking is interrupted.", low=0, flag="thinking_low")
    high: int = option(
        0,
        "Greatest number of tokens after which thinking is interrupted, drawn uniformly for each rollout; 0: never. "
        "ScaleRL: 10000 to 12000.",
        low=0,
        flag="thinking_high",
    )
    answer_tokens: int = option(
        2048,
        "Longest answer after the end of thinking of an interrupted rollout.",
        low=1,
        flag="thinking_answer_tokens",
    )
    end_phrase: str = option(
        END_PHRASE, "What is put into the context to end the thinking.", flag="thinking_end_phrase"
    )
    end_of_thinking: str = option(
        "</think>",
        "Text that ends thinking: a rollout that has it goes on without the phrase. Empty: all that is cut thinks.",
        flag="thinking_end_of_thinking",
    )
    evaluation: bool = option(True, "Interrupt the rollouts of evaluations too.", flag=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high and not 1 <= self.low <= self.high:
            raise InputError(
                field_of(self, "low"),
                f" = {self.low} must lie in 1 .. {self.high}, ",
                field_of(self, "high"),
                ": thinking is interrupted somewhere between the two",
            )
        if self.high and not self.end_phrase:
            raise InputError(
                field_of(self, "end_phrase"),
                " is empty: give the text that ends the thinking, or switch interruption off by ",
                field_of(self, "high"),
                " = 0",
            )


@described
@dataclasses.dataclass(frozen=True)
class ToolConfig(Group):
    """A tool that answers calls within a rollout."""

    name: Literal["none", "calculator"] = option(
        "none",
        "calculator: a turn that ends with `=` is answered by the value of the sum before it (docs/length_control.md).",
    )
    calls: int = option(1, "Calls of a rollout that are answered, at most.", low=1)
    call_tokens: int = option(16, "Longest turn, in tokens: what ends in a call, and what answers.", low=1)


@described
@dataclasses.dataclass(frozen=True)
class SamplingConfig(Group):
    """How completions are sampled, in training and in evaluation."""

    temperature: float = option(1.0, "Sampling temperature.", above=0)
    top_p: float = option(
        1.0, "Nucleus size; below 1 training needs top_k, which bounds what a nucleus may hold.", above=0, high=1
    )
    max_prompt_tokens: int = option(
        9, "Longest prompt, in tokens; a longer one is an error. The default is the embedded task's.", low=1
    )
    max_tokens: int = option(
        9,
        "Longest completion, in tokens, what is put into it included. The default is the embedded task's.",
        low=1,
    )
    max_rollouts_per_dispatch: int = option(
        0,
        "Completions decoded at once in the learner's process; 0: as many as an accelerator has room for beside the "
        "learner's state, and 512 elsewhere.",
        low=0,
        identity=False,
    )
    thinking: ThinkingConfig = option(default_factory=ThinkingConfig, later=True)
    tool: ToolConfig = option(default_factory=ToolConfig, later=True)
    top_k: int = option(
        0,
        "Only so many of the most probable tokens are drawn from; 0 for all. Completions say which, and the learner "
        "scores each token among these (docs/method.md); in process, or by a stock vLLM.",
        low=0,
        later=True,
    )


@described
@dataclasses.dataclass(frozen=True)
class RecipeConfig(CreditConfig):
    """How rewards become a batch of weighted tokens; `CreditConfig` says what they are worth."""

    healthy: Literal["none", "easy", "hard", "mixture"] = option(
        "none",
        "Regularisation preset of the IsoCompute Playbook: easy turns KL and entropy terms on, hard and mixture "
        "require both off, none leaves them to `loss` (ablations).",
    )
    microbatch_tokens: int = option(
        2048,
        "Completion tokens computed at once, forward and backward, over all devices; of packed rows all tokens, and at "
        "least a row for each part of the batch.",
        low=1,
    )
    epochs: int = option(1, "Passes over each sampled batch; C counts its rollouts once.", low=1, later=True)
    minibatches: int = option(
        1,
        "Equal parts that each pass cuts a sampled batch into, its groups dealt whole and at random; each is an update "
        "with denominators of its own. A step makes epochs x minibatches updates.",
        low=1,
        later=True,
    )


@described
@dataclasses.dataclass(frozen=True)
class PackingConfig(Group):
    """How rollouts become rows of tokens."""

    row_tokens: int = option(
        0,
        "Tokens of a row, into which whole rollouts, prompts included, are packed; 0 reads each prompt once for its "
        "group and pads completions to sampling.max_tokens, which is quicker where they are short.",
        low=0,
    )
    trees: Literal["auto", "on", "off"] = option(
        "auto",
        "Whether what rollouts of a prompt have in common, equal beginnings of their completions included, is computed "
        "once: auto, where sequences are short (64 tokens) and batches have 32 rollouts, row_tokens is not set and the "
        "model is no mixture of experts; on, in rows of row_tokens, whose attention holds all pairs of a row; off. "
        "Gradients differ by rounding alone.",
        later=True,
    )


@described
@dataclasses.dataclass(frozen=True)
class MeshConfig(Group):
    """Devices along each mesh axis (see `sharding`)."""

    data: int = option(1, "Devices over which the rollouts of a batch are divided.", low=1)
    fsdp: int = option(1, "Devices over which weights and moments are divided, and the rollouts too.", low=1)
    context: int = option(
        1,
        "Devices over which weights and moments are divided, and each packed row along its tokens, for rows that are "
        "longer than one device has room for.",
        low=1,
        later=True,
    )
    tensor: int = option(1, "Devices over which heads and hidden units are divided.", low=1)
    expert: int = option(
        1, "Devices over which experts are divided, and the rollouts too; 1 for dense models.", low=1, later=True
    )


@described
@dataclasses.dataclass(frozen=True)
class ComputeConfig(Group):
    """How the model is computed: what is kept, by which kernel, and how exactly (see `ModelConfig`)."""

    remat: Remat = option("none", REMAT_HELP, identity=False)
    attention: AttentionKernel = option("auto", ATTENTION_HELP, identity=False)
    head: HeadPrecision = option("auto", HEAD_HELP)


@described
@dataclasses.dataclass(frozen=True)
class CurriculumConfig(Group):
    """Which problems a run draws; docs/curriculum.md says what each choice costs in C."""

    dynamic_sampling: bool = option(
        False,
        "Draws further problems within a step until problems_per_batch of them have rewards that differ (DAPO, arXiv "
        "2503.14476); the others are paid for and not trained on. A run then ends when its compute is spent, not after "
        "a number of steps.",
    )
    max_sampled_batches: float = option(
        10.0,
        "Problems that a step of dynamic sampling may draw, in multiples of problems_per_batch; what it has by then is "
        "trained on.",
        low=1,
    )
    retire_rate: float = option(
        0.0,
        "Problems whose rollouts of this run were correct at least so often are no longer drawn "
        "(no-positive-resampling; ScaleRL, arXiv 2510.13786: 0.9); 0 retires none.",
        low=0,
        high=1,
    )
    retire_attempts: int = option(1, "Rollouts of a problem before it can be retired.", low=1)
    retire_for: Literal["run", "epoch"] = option(
        "run", "How long a problem is retired: run, for good (ScaleRL); epoch, it sits out every other epoch."
    )
    order: Literal["shuffled", "easy_to_hard", "hard_to_easy"] = option(
        "shuffled",
        "Order of problems within an epoch: shuffled; easy_to_hard or hard_to_easy, by `rate_column`, shuffled among "
        "equals.",
    )
    rate_column: str = option("avg@16", "Measured rate of the problem set, from curation, that says how hard it is.")
    pools: tuple[float, ...] = option(
        (),
        "Rates that cut the problems into pools of difficulty, ascending: (0.1, 0.5) makes three, each with its upper "
        "end. Problems of a pool are equals for `order`; without pools those of one rate are.",
        low=0,
        high=1,
    )
    stages: tuple[float, ...] = option(
        (),
        "Shares of max_compute, one for each pool in `order`, that sum to 1: the run trains on one pool after the "
        "other, epochs of it each. Empty: every epoch has all pools.",
        low=0,
        high=1,
    )
    train_sets: dict[str, str] = option(
        default_factory=dict,
        help="Name -> problem set file, in place of `train_set`: a mixture. Problems are then called NAME/ID.",
    )
    weighting: Literal["fixed", "adaptive"] = option(
        "fixed",
        "Shares of the sets in a mixture: fixed, `weights`; adaptive, in proportion to the mean of p (1 - p) over the "
        "problems of each that were drawn last, p being their rate of success (see experiment/problem_stream.py).",
    )
    weights: dict[str, float] = option(
        default_factory=dict, help="Name -> weight of each of `train_sets`; empty: their numbers of problems.", above=0
    )

    @property
    def varies(self) -> bool:
        """Whether draws may be of other sizes than problems_per_batch."""
        return self.dynamic_sampling or self.retire_rate > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.pools) != sorted(set(self.pools)):
            raise InputError(field_of(self, "pools"), f" = {self.pools}: give ascending rates")
        if self.stages and len(self.stages) != len(self.pools) + 1:
            raise InputError(
                field_of(self, "stages"),
                f" has {len(self.stages)} shares for {len(self.pools) + 1} pools: give one for each (`pools` are the "
                "rates between them)",
            )
        if self.stages and (abs(sum(self.stages) - 1) > 1e-9 or min(self.stages) <= 0):
            raise InputError(field_of(self, "stages"), f" = {self.stages}: shares must be above 0 and sum to 1")
        if (self.pools or self.stages) and self.order == "shuffled":
            raise InputError(
                field_of(self, "pools"),
                " need an order: set ",
                field_of(self, "order"),
                " to easy_to_hard or hard_to_easy",
            )
        if self.weights and set(self.weights) != set(self.train_sets):
            raise InputError(
                field_of(self, "weights"),
                f" names {sorted(self.weights)}, ",
                field_of(self, "train_sets"),
                f" {sorted(self.train_sets)}: name the same sets, or give no weights",
            )
        if self.weights and self.weighting == "adaptive":
            raise InputError(
                field_of(self, "weights"),
                " are not used by ",
                field_of(self, "weighting"),
                " = 'adaptive': give one of them",
            )
        if len(self.train_sets) == 1 or "" in self.train_sets:
            raise InputError(
                field_of(self, "train_sets"), f" = {self.train_sets}: name two sets or more; one is config.train_set"
            )
