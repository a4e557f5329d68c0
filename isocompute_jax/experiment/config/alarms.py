"""What a run warns of while it goes on."""

from __future__ import annotations

import dataclasses

from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class AlarmsConfig:
    """Bounds beyond which a run says so: a line in the log when one is crossed, and `alarms` in metrics.jsonl.

    They look at means over `window` steps. 0 turns an alarm off. No result depends on them.
    """

    window: int = option(5, "Steps over which numbers are averaged.", low=1)
    entropy_collapse: float = option(5.0, "Times that entropy may fall below that of the first `window` steps.", low=0)
    entropy_explosion: float = option(3.0, "Times that entropy may rise above that of the first `window` steps.", low=0)
    kl: float = option(0.5, "Distance from the reference policy, in nats per token (column `kl`).", low=0)
    ratio: float = option(20.0, "Largest ratio of an update (column `ratio_max`).", low=0)
    correction: float = option(
        0.1, "Share of tokens whose sampler correction is cut (column `correction_cut`).", low=0, high=1
    )
    truncation: float = option(
        0.1,
        "Share of completions that are cut off (column `truncation_rate`); above 0.1 ScaleRL saw training go unstable.",
        low=0,
        high=1,
    )
    evaluation: float = option(
        0.1, "What avg@k of an evaluation set may lie below the best of the run, as a share of problems.", low=0, high=1
    )

    def __post_init__(self) -> None:
        check(self)
