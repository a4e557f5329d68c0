"""Those who are told of every line that a run logs: TensorBoard, Weights & Biases, Prometheus.

The logs of the run directory are the truth; trackers repeat it. So none of them may end a run or hold it up: each works
in a thread of its own behind a short queue, the first thing that fails is said once, and from then on it is left alone.
"""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable

from isocompute_jax.experiment.config import TrackConfig
from isocompute_jax.experiment.tracking.workers import Tracker, Trackers
from isocompute_jax.records.errors import InputError

__all__ = ["Tracker", "Trackers", "check_installed", "make_trackers"]


def check_installed(config: TrackConfig) -> None:
    """Raises InputError where a package is missing that the config asks for."""
    needed = (
        (config.tensorboard, "tensorboard", "tensorboardX", "track"),
        (bool(config.wandb), "wandb", "wandb", "wandb"),
        (config.prometheus_port > 0, "prometheus_port", "prometheus_client", "track"),
    )
    for asked, field, module, extra in needed:
        if asked and importlib.util.find_spec(module) is None:
            raise InputError(
                f"config.track.{field} needs {module}, which is not installed: pip install 'isocompute-jax[{extra}]', "
                "or leave the field out"
            )


def make_trackers(config: TrackConfig, path: pathlib.Path) -> Trackers:
    """The trackers of the run in the directory `path`; nothing is made before its first line is logged."""
    made: dict[str, Callable[[], Tracker]] = {}
    if config.tensorboard:
        from isocompute_jax.experiment.tracking.tensorboard import TensorBoard

        made["TensorBoard"] = lambda: TensorBoard(path)
    if config.wandb:
        from isocompute_jax.experiment.tracking.weights_and_biases import WeightsAndBiases

        made["Weights & Biases"] = lambda: WeightsAndBiases(path, project=config.wandb)
    if config.prometheus_port:
        from isocompute_jax.experiment.tracking.prometheus import Prometheus

        made["Prometheus"] = lambda: Prometheus(path, config.prometheus_address, config.prometheus_port)
    return Trackers(made)
