"""Who else is told of what a run logs, and what of its rollouts is kept."""

from __future__ import annotations

import dataclasses

from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class TrackConfig:
    """Where a run's numbers go beside metrics.jsonl and eval.jsonl, which are always written.

    No result depends on it, and what fails to be tracked never ends a run.
    """

    tensorboard: bool = option(
        False, "Write what is logged for TensorBoard too, in the run's folder tensorboard/ (extra `track`)."
    )
    wandb: str = option(
        "",
        "Project of Weights & Biases that gets what is logged; empty for none (extra `wandb`). WANDB_MODE=offline in "
        "the environment keeps it in the run's folder wandb/, for `wandb sync`.",
    )
    prometheus_port: int = option(
        0, "Port on which the learner answers Prometheus; 0 for none (extra `track`).", low=0, high=65535
    )
    prometheus_address: str = option(
        "127.0.0.1", "Address of `prometheus_port`; 0.0.0.0 lets other machines read it, and there is no password."
    )
    rollouts: int = option(1, "Groups of a step that are kept in rollouts.jsonl, to be read; 0 for none.", low=0)
    rollouts_every: int = option(
        0,
        "Steps from one that keeps rollouts to the next; 0 spreads about 200 over the run, which bounds the file.",
        low=0,
    )

    def __post_init__(self) -> None:
        check(self)
