"""Which checkpoints a run keeps."""

from __future__ import annotations

import dataclasses

from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class CheckpointsConfig:
    """Which checkpoints are kept; all others are deleted when the next one is whole. No result depends on it."""

    keep_last: int = option(
        2, "The last so many. Of two, one may be damaged, and the run goes on from the one before.", low=1
    )
    keep_best: int = option(
        0, "The best so many by `best_metric`; every evaluation is then followed by a checkpoint.", low=0
    )
    best_metric: str = option(
        "", "What is best: SET/COLUMN of eval.jsonl, such as hard/avg@4, the higher the better; needed by `keep_best`."
    )
    keep_every: int = option(0, "Those after every so many steps, for good; 0 for none.", low=0)

    def __post_init__(self) -> None:
        check(self)
