"""A fork: a run that begins from a checkpoint of another one, with fields that differ.

Its directory is given what the other run's directory had at that checkpoint, logs included, and then it is resumed as
any run is: weights, moments, position in the data and history go on, and C counts all that led to the weights.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.problem_stream import stage_of
from isocompute_jax.learner import checkpoint
from isocompute_jax.records import run_files
from isocompute_jax.records.checksums import model_digest
from isocompute_jax.records.errors import CONFIG, InputError
from isocompute_jax.records.identity import CONTENTS, IDENTITY, differences, identity, is_of, moved

LOG = logging.getLogger(__name__)

LOGS = (run_files.METRICS, run_files.ROLLOUTS, run_files.EVAL, run_files.AGREEMENT)
KEPT = (
    ("train_set", "the position in the data is of its problems"),
    ("problem_set_size", "the position in the data is of its problems"),
    ("curriculum.train_sets", "the position in the data is of its problems"),
    ("curriculum.pools", "the position in the data is of its pools"),
    ("optimizer.moments", "moments are stored so"),
    ("lora.rank", "its checkpoint holds such adapters, or all weights"),
    ("lora.targets", "its checkpoint holds such adapters"),
    ("lora.alpha", "what its adapters mean hangs on it"),
)
"""Fields that a fork has in common with the run that it begins from, and why."""
KEPT_BY_ADAPTERS = ("model", "its adapters were trained on that model's weights; give the same directory")
"""The same of a fork of a run that trains adapters."""
KEPT_BY_AUTO = tuple(
    (f"evaluation.{name}", "schedule.group_size = 'auto' compares its evaluations with that run's")
    for name in ("sets", "max_problems", "solved_at")
)
"""The same of a fork that chooses n itself."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The checkpoint that a run begins from."""

    run: pathlib.Path
    written: Mapping[str, Any]  # that run's config.json
    checkpoint: pathlib.Path
    step: int
    compute: int
    changed: tuple[str, ...]  # what differs from that run's config, replicates included


def origin_of(config: RunConfig, contents: Mapping[str, str]) -> Origin:
    """The checkpoint that `config.fork` names, the last whole one where it names none.

    `contents` are digests of what this run reads: files of the same rows may lie elsewhere than that run's.

    Raises:
      InputError: there is no such run or checkpoint, it is damaged, it has spent all that this run may, or a field
        differs that may not.
    """
    text = config.fork
    name, at, last = text.rpartition("@")
    run, step = (pathlib.Path(name), int(last)) if at and last.isdigit() else (pathlib.Path(text), None)
    written = run_files.read_run(run).config
    directory = run / run_files.CHECKPOINTS
    found = {}
    for number in sorted(checkpoint.names(directory)):
        path = directory / str(number)
        if checkpoint.damage(path) is None:
            ledger = checkpoint.read_loop(path)["ledger"]
            found[int(ledger["step"])] = path, int(ledger["compute"])
    if not found or (step is not None and step not in found):
        there = f"; there are those of steps {', '.join(map(str, found))}" if found else ""
        raise InputError(f"config.fork = {text!r}: {directory} holds no such whole checkpoint{there}")
    step = max(found) if step is None else step
    path, compute = found[step]
    if compute >= config.max_compute:
        raise InputError(
            f"config.fork = {text!r} has spent {compute:,} rollouts at step {step}, and {CONFIG.max_compute} = "
            f"{config.max_compute:,}: a fork's compute counts from the beginning of the run it comes from; raise it"
        )
    changed = differences(config, written.get("config", {}))
    by_auto = KEPT_BY_AUTO if config.schedule.kind == "auto" else ()
    elsewhere = moved(written.get(CONTENTS, {}), contents)
    for field, why in (*KEPT, *([KEPT_BY_ADAPTERS] if config.lora.rank else []), *by_auto):
        for difference in changed:
            if is_of(difference, [field]) and not is_of(difference, elsewhere):
                raise InputError(f"{difference}: a fork has this in common with the run it begins from, because {why}")
    return Origin(
        run, written, path, step, compute, tuple(text for text in changed if not text.startswith("config.fork"))
    )


def ancestry(origin: Origin) -> dict[str, Any]:
    """What config.json says of where a fork comes from."""
    found = {"run": str(origin.run), "step": origin.step, "compute": origin.compute, "changed": list(origin.changed)}
    return found | ({"fork": origin.written["fork"]} if "fork" in origin.written else {})


def identity_of_fork(config: RunConfig, origin: Origin) -> dict[str, Any]:
    """The fork's identity, equal for forks whose ancestors repeat one configuration, as those of several seeds do.

    In place of the directory stand the step, and the fields that the ancestor had otherwise.
    """
    ours, theirs = identity(config) | {"fork": ""}, origin.written.get(IDENTITY, {})
    if not theirs:  # of a release that did not write it
        return identity(config)
    other = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name, "") != theirs.get(name, "")]
    text = ", ".join(f"{name} {theirs.get(name, 'as by default')}" for name in other)
    return ours | {"fork": f"step {origin.step}" + (f" of {text}" if text else "")}


def say_of_jumps(config: RunConfig, origin: Origin) -> None:
    """Warns of a learning rate, or a stage, that jumps at the fork, since its plan is another one or ends elsewhere."""
    ours, written, of_rate = config.schedule, origin.written.get("config", {}), ("rate", "final_rate", "decay_share")
    theirs = ScheduleConfig(**{name: x for name, x in written.get("schedule", {}).items() if name in of_rate})
    ended = written.get("max_compute", config.max_compute)
    before, after = theirs.rate_factor(origin.compute, ended), ours.rate_factor(origin.compute, config.max_compute)
    if before != after:
        LOG.warning(
            "config.schedule.rate = %r, config.max_compute = %d: where this run begins, at %d rollouts, the learning "
            "rate jumps from %.3g of its peak, in %s (%r, %d), to %.3g of it",
            *(ours.rate, config.max_compute, origin.compute, before, origin.run, theirs.rate, ended, after),
        )
    stages, planned = config.curriculum.stages, written.get("curriculum", {}).get("stages", [])
    begun, left = stage_of(origin.compute / config.max_compute, stages), stage_of(origin.compute / ended, planned)
    if stages and planned and begun != left:
        LOG.warning(
            "config.curriculum.stages = %s, config.max_compute = %d: where this run begins, at %d rollouts, the "
            "curriculum goes from stage %d, in %s (%s, %d), to stage %d",
            *(list(stages), config.max_compute, origin.compute, left + 1, origin.run, planned, ended, begun + 1),
        )


def say_of_model(config: RunConfig, origin: Origin) -> None:
    """Warns of a model whose weights are not trained: the origin's are, even if it began with another model."""
    theirs = origin.written.get("config", {}).get("model", config.model)
    if theirs != config.model and model_digest(theirs) != model_digest(config.model):
        kl = ", and the reference of the KL term" if config.loss.kl_coef and not config.teacher else ""
        LOG.warning(
            "config.model = %r, and %s began with %r: a fork trains that run's weights on; of config.model it takes "
            "shape and tokenizer alone%s",
            *(config.model, origin.run, theirs, kl),
        )


def begin(path: pathlib.Path, origin: Origin) -> None:
    """Puts what a run comes from into its directory; the checkpoint comes last.

    A process that is killed meanwhile leaves a directory in which the same command does all of it again.
    """
    for name in LOGS:
        if (origin.run / name).exists():
            shutil.copy(origin.run / name, path / name)
            run_files.cut_back(path / name, step=origin.step)
    for left in path.glob(f".{run_files.CHECKPOINTS}.*"):  # of one that was killed as it copied
        shutil.rmtree(left, ignore_errors=True)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=path, prefix=f".{run_files.CHECKPOINTS}."))
    shutil.copytree(origin.checkpoint, temporary / origin.checkpoint.name)
    temporary.chmod(0o755)
    temporary.rename(path / run_files.CHECKPOINTS)
    LOG.info("%s begins from step %d of %s, after %d rollouts", path, origin.step, origin.run, origin.compute)
