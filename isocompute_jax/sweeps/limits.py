"""What ends a sweep, or some of its runs, before they are done: a budget, and curves that cannot matter any more."""

from __future__ import annotations

import dataclasses

from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class Limits:
    """When a sweep ends early; each is a flag of its name."""

    max_device_hours: float | None = option(
        None,
        "Device-hours that all runs together may take, those of earlier starts included. Once they are spent nothing "
        "new is started and running ones write a checkpoint and stop; with a higher budget the same command goes on.",
        low=0,
    )
    stop_hopeless: float = option(
        0.0,
        "Stop a run once the chance that its configuration leads at any compute that is left to it, by the fitted "
        "curves and their uncertainty, is below this, such as 0.01; 0 never does. Its curve stays in the fit. "
        "Nothing is stopped in the first quarter of the compute of the longest run.",
        low=0,
        high=0.5,
    )

    def __post_init__(self) -> None:
        check(self, "--")


NO_LIMITS = Limits()
