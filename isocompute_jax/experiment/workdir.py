"""A run's directory: opened and locked, its config.json, the lines of its logs, its fleet.json, weights exported."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import isocompute_jax
from isocompute_jax import model
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.distributed import Team
from isocompute_jax.experiment import fork
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.metrics import cutting_field, next_watch
from isocompute_jax.experiment.pipeline import Sampled
from isocompute_jax.learner import checkpoint
from isocompute_jax.records import run_files
from isocompute_jax.records.checksums import model_digest
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.identity import CONTENTS, FILES, IDENTITY, differences, flatten, identity, is_of, moved
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup

if TYPE_CHECKING:
    from isocompute_jax.experiment.build import Parts
    from isocompute_jax.experiment.loop_state import LoopState
    from isocompute_jax.service.client.dispatch import FleetHealth  # gRPC is needed by nobody else

LOG = logging.getLogger(__name__)

SEEN_S = 10.0
"""Shared storage may show what another host wrote a little later."""
NOTHING_DONE = (run_files.LOCK, run_files.CONFIG, run_files.FLEET)
"""Files of a run that has done nothing yet."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
EXPORTED = "export.json"  # file that `export` adds to what it writes: the run whose weights they are
CODE = "code"  # key of config.json: digests of the files that the user's own rewards and environment stand in
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "transformers", "numpy")


def is_done(path: pathlib.Path, config: RunConfig) -> bool:
    """Whether the directory holds this run, finished; nothing is written.

    Raises:
      InputError: the directory holds a run of another config, or something that is no run.
    """
    if (path / run_files.CONFIG).exists():
        done = (path / run_files.DONE).exists()
        check_same_run(path, config, but=() if done else FILES)  # the rows of one that goes on are compared once read
        return done
    if path.exists() and not path.is_dir():
        raise _in_its_place(path)
    if path.exists() and any(not entry.name.startswith(".") for entry in path.iterdir()):
        raise InputError(f"--workdir={path} is not empty and holds no run: choose another --workdir")
    return False


def recorded(path: pathlib.Path) -> dict[str, Any]:
    """The config of the run in a directory; empty where there is none yet.

    Raises:
      InputError: its config.json is none of a run.
    """
    config_path = path / run_files.CONFIG
    if not config_path.exists():
        return {}
    try:
        found = json.loads(config_path.read_text(encoding="utf-8"))["config"]
        groups = [found.get(name, {}) for name in ("evaluation", "schedule")] if isinstance(found, dict) else [None]
        if not all(isinstance(group, dict) for group in groups):
            raise TypeError("it has no fields")
        collections.deque(flatten(found), maxlen=0)  # raises RecursionError where it is too deep to be compared
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{config_path}: not a run's config ({error!r}); choose another --workdir") from error
    return found


@contextlib.contextmanager
def opened(
    path: pathlib.Path,
    config: RunConfig,
    facts: run_files.RunFacts,
    team: Team,
    contents: Callable[[], Mapping[str, str]],
) -> Iterator[None]:
    """Makes the directory, locks it, and writes its config.json unless it is there: process 0 does, for all.

    `contents`, called there alone, gives digests of what the run reads: one that goes on must find them again.

    A new directory in which bad input was found before anything was done is removed again, so that the corrected
    command does not meet the config of the first one.

    Raises:
      InputError: another process is at work in it, or it holds a run of another config; or another host does not see
        it, and could not write its share of checkpoints there.
    """
    with contextlib.ExitStack() as lock:
        new = team.broadcast(lambda: _open(path, config, facts, lock, contents()))
        try:
            team.everywhere(lambda: _check_seen(path))
            yield
        except InputError:
            if new and team.leads:
                remove_unused(path)
            raise


def _open(
    path: pathlib.Path,
    config: RunConfig,
    facts: run_files.RunFacts,
    lock: contextlib.ExitStack,
    contents: Mapping[str, str],
) -> bool:
    """Makes and locks a run's directory, and says whether it is a new one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.enter_context(locked(path, "run"))
    except (FileExistsError, NotADirectoryError):
        raise _in_its_place(path) from None
    except OSError as error:
        raise InputError(
            f"--workdir={path} cannot be written ({error.strerror}): choose another --workdir, or make room there"
        ) from error
    new = not (path / run_files.CONFIG).exists()
    begun = (path / run_files.CHECKPOINTS).exists()
    origin = fork.origin_of(config, contents) if config.fork and (new or not begun) else None
    if new:
        if origin is not None:  # it goes on within that run's epoch
            regraded = any(text.startswith(("config.reward.", "config.environment.")) for text in origin.changed)
            # What grades a row that does not say so is a part of it; what is evaluated may change, but under auto.
            kept = {"tokenizer", "model"} | (set() if regraded else {"train_set"})
            kept |= set(contents) if config.schedule.kind == "auto" and not regraded else set()
            known = {name: digest for name, digest in contents.items() if name in kept}
            _check_contents(origin.run, config, known, "leave config.fork out")
        write_config(path, config, facts, origin, contents)
    else:
        check_same_run(path, config, but=_check_contents(path, config, contents))
    if origin is not None or not new:
        _say_of_other_code(path if begun or origin is None else origin.run, config)
    if origin is not None and not begun:
        fork.say_of_jumps(config, origin)
        fork.say_of_model(config, origin)
        fork.begin(path, origin)
    return new


def _check_seen(path: pathlib.Path) -> None:
    """Raises InputError where the directory that process 0 opened is not to be seen, after a while."""
    deadline = time.monotonic() + SEEN_S
    while not (path / run_files.CONFIG).exists():
        if time.monotonic() > deadline:
            raise InputError(
                f"--workdir={path} is not what process 0 sees there: every host writes its share of checkpoints, so it "
                "must lie on storage that all hosts share"
            )
        time.sleep(SEEN_S / 50)


def write_config(
    path: pathlib.Path,
    config: RunConfig,
    facts: run_files.RunFacts,
    origin: fork.Origin | None = None,
    contents: Mapping[str, str] | None = None,
) -> None:
    """Writes config.json: what repeats the run, what it is compared by, and of a fork its origin."""
    content = {
        **dataclasses.asdict(facts),
        **({run_files.SCHEDULE: text} if (text := schedule_text(config)) else {}),
        **({"fork": fork.ancestry(origin)} if origin else {}),
        **({CONTENTS: dict(contents)} if contents else {}),
        **({CODE: code} if (code := code_of(config)) else {}),
        "config": dataclasses.asdict(config),
        IDENTITY: fork.identity_of_fork(config, origin) if origin else identity(config),
        "versions": versions(),
        "commit": commit(),
        "devices": [str(device) for device in jax.devices()],
    }
    run_files.write_atomic(path / run_files.CONFIG, json.dumps(content, indent=2) + "\n")


def code_of(config: RunConfig) -> dict[str, str]:
    """Module -> digest of its file, of those in which the user's own rewards and environment stand.

    They have been imported.
    """
    found, reward = {}, config.reward
    for name in (reward.function, *reward.tasks.values(), *reward.allow, config.environment.name):
        named, _, attribute = name.partition(":")
        own = getattr(getattr(sys.modules.get(named), attribute, None), "__module__", named)
        if file := attribute and getattr(sys.modules.get(own), "__file__", None):
            found[own] = hashlib.blake2b(pathlib.Path(file).read_bytes(), digest_size=16).hexdigest()
    return found


def _say_of_other_code(path: pathlib.Path, config: RunConfig) -> None:
    """Warns of rewards and environments whose code is not what the run in a directory began with."""
    known = json.loads((path / run_files.CONFIG).read_text(encoding="utf-8")).get(CODE, {})
    for name, digest in code_of(config).items():
        if known.get(name, digest) != digest:
            said = "%s has changed since %s began: its curve may mix rewards of two kinds from here on"
            LOG.warning(said, sys.modules[name].__file__, path)


def schedule_text(config: RunConfig) -> str:
    """What changes inside a run, in a line, by which curves of such runs are told apart; empty for a fixed run."""
    return "; ".join(filter(None, [config.schedule.text, "fork" if config.fork else ""]))


def _in_its_place(path: pathlib.Path) -> InputError:
    return InputError(f"--workdir={path}: there is a file in its place; choose another --workdir")


def remove_unused(path: pathlib.Path) -> None:
    """Removes a directory in which nothing was logged and no checkpoint written."""
    used = [file for file in path.rglob("*") if file.is_file() and file.name not in NOTHING_DONE]
    if not used:
        shutil.rmtree(path)


def _check_contents(
    path: pathlib.Path, config: RunConfig, contents: Mapping[str, str], otherwise: str = "choose another --workdir"
) -> Sequence[str]:
    """The fields whose files are known to have the rows that the run in a directory read.

    Raises:
      InputError: it is known to have read others.
    """
    try:
        known = json.loads((path / run_files.CONFIG).read_text(encoding="utf-8")).get(CONTENTS, {})
    except ValueError:
        return ()  # which `check_same_run` says
    files = {"train_set": config.train_set or "config.curriculum.train_sets"}
    files |= {f"evaluation.sets.{name}": file for name, file in config.evaluation.sets.items()}
    what = {name: f"{file} has other rows, or these in another order," for name, file in files.items()}
    what["tokenizer"] = f"the tokenizer of {config.model} has other tokens"
    what["model"] = f"{config.model} is another model"
    for name, digest in contents.items():
        if known.get(name, digest) != digest:
            raise InputError(
                f"{path}: {what[name]} than when this run began, and the two would mix: give it back what it had, or "
                f"{otherwise}"
            )
    return moved(known, contents)


def check_same_run(path: pathlib.Path, config: RunConfig, *, but: Collection[str] = ()) -> None:
    """Holds a run directory to the run that is to be resumed in it, in all fields `but` these.

    Raises:
      InputError: it holds a run of another config, or its config.json cannot be read.
    """
    theirs = recorded(path)
    changed = [text for text in differences(config.as_recorded(theirs), theirs) if not is_of(text, but)]
    if changed:
        raise InputError(
            f"{path} holds a run of another config ({'; '.join(changed[:5])}). Choose another --workdir, "
            f"or remove it to start anew; in another, --config.fork={path} goes on from it"
        )


@contextlib.contextmanager
def locked(path: pathlib.Path, what: str) -> Iterator[None]:
    """Holds a directory: two processes at work in one would write to the same files. A killed holder lets go.

    It is held to `run_files.check_links` first.

    Storage that knows no locks (Lustre mounted with noflock, NFS without its lock daemon) is warned of.

    Raises:
      InputError: another process holds it; who, is read from the lock's file. Or a link in it leads elsewhere.
    """
    run_files.check_links(path)
    with open(path / run_files.LOCK, "a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().decode(errors="replace")
            where = f"{path} ({holder})" if holder else str(path)
            message = f"another {what} is at work in {where}: wait for it, or choose another directory"
            raise InputError(message) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            LOG.warning("%s cannot be locked (%s): see to it that no other %s works there", path, error.strerror, what)
        with contextlib.suppress(OSError):  # of a full disk, say: it is but a courtesy
            file.truncate(0)
            file.write(f"{socket.gethostname()}, pid {os.getpid()}".encode())
        yield


RECORDS = (Problem, Completion, RolloutGroup, BatchSize, Sampled)
"""What travels between the processes of a run."""


def facts(config: RunConfig, workdir: str) -> dict[str, Mapping[str, Any]]:
    """What must be the same in every process of a run (`distributed.meeting`)."""
    fields = {f"config.{name}": value for name, value in flatten(dataclasses.asdict(config))}
    return {"config": {**fields, "--workdir": os.path.abspath(workdir)}, "version": versions()}


def versions() -> dict[str, str]:
    """Versions of this package and of what its numbers depend on."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"isocompute_jax": isocompute_jax.__version__, **found}


def commit() -> str:
    """The git commit of the source tree, with `+` when it has changes; empty outside a checkout."""
    root = pathlib.Path(__file__).parent

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    return head + ("+" if head and git("status", "--porcelain", "--untracked-files=no") else "")


class Diverged(RunError):
    """Numbers are no longer finite: what would be checkpointed is worthless."""

    def __init__(self, parts: Parts, state: LoopState, what: str):
        kept = parts.checkpointer.busy or checkpoint.names(parts.path / run_files.CHECKPOINTS)
        why = (
            f"nothing was trained yet: look at the weights of {parts.config.model}, and at what the sampler reports"
            if state.step == 0
            else "the learning rate is probably too high. "
            + ("The last checkpoint is kept" if kept else "No checkpoint was written yet")
        )
        super().__init__(f"{parts.path}: {what} not finite at step {state.step}: {why}")


def append(parts: Parts, state: LoopState, name: str, columns: dict[str, Any]) -> LoopState:
    """Charges the time that passed and what was redrawn, then appends a line to the log `name`, ledger first.

    A line of metrics.jsonl ends with the alarms that are on; new ones are logged.

    Raises:
      Diverged: a number is not finite.
    """
    broken = [key for key, value in columns.items() if isinstance(value, float) and not math.isfinite(value)]
    if broken:
        raise Diverged(parts, state, ", ".join(broken))
    now, redrawn = time.monotonic(), parts.sampler.redrawn_rollouts
    sampler, seconds = parts.sampler.device_seconds, now - state.clock
    ledger = state.ledger.charge_time(
        seconds,
        {jax.devices()[0].device_kind: seconds * (1 if parts.inputs.mesh is None else len(jax.devices()))},
        {kind: spent - state.sampler_seconds.get(kind, 0.0) for kind, spent in sampler.items()},
    ).charge_redrawn(redrawn - state.redrawn)
    line = {**ledger.columns(), **columns}
    limit = cutting_field(parts.config) + parts.inputs.prompts.also
    watch, new = next_watch(state.watch, parts.config.alarms, name, line, limit=limit)
    if name == run_files.METRICS:
        line["alarms"] = list(watch.active)
        if state.controller:
            state = dataclasses.replace(state, controller=state.controller.after_step(line))
    if parts.team.leads:
        run_files.append_line(parts.path / name, line)
        parts.trackers.log(name, line)
        for alarm, advice in new.items():
            LOG.warning("step %d: alarm %s: %s", ledger.step, alarm, advice)
    return dataclasses.replace(state, ledger=ledger, clock=now, sampler_seconds=sampler, redrawn=redrawn, watch=watch)


def export_checkpoint(
    run: str | os.PathLike[str],
    *,
    name: int | None = None,
    out: str | os.PathLike[str] | None = None,
    base_model: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Writes the weights of a checkpoint as the run itself would have: same bytes, same dtype, same tokenizer.

    The run may go on meanwhile. Only the weights are read, to the host's memory.

    Args:
      run: run directory.
      name: of the checkpoint; None for the last whole one.
      out: directory to write; None for exports/step-N of the run.
      base_model: Hugging Face directory of the run's model, where it is not where config.json says.

    Returns:
      the directory.

    Raises:
      InputError: there is no such run, checkpoint or model, or it is damaged, or `out` is in use for something else.
    """
    run = pathlib.Path(run)
    run_files.check_links(run)
    record = run_files.read_run(run).config
    config = record.get("config", {})
    directory = run / run_files.CHECKPOINTS
    known = sorted(checkpoint.names(directory))
    if name is None:
        name = next((step for step in reversed(known) if checkpoint.damage(directory / str(step)) is None), None)
        if name is None:
            raise InputError(f"{directory} holds no whole checkpoint")
    if name not in known:
        raise InputError(f"{directory} holds no checkpoint {name}; there are: {', '.join(map(str, known)) or 'none'}")
    path = directory / str(name)
    damage = checkpoint.damage(path)
    if damage is not None:
        raise InputError(f"{path} is damaged: {damage}. Export another one")
    source = base_model or config.get("model", "")
    shape = model.load_config(source, dtype=config.get("dtype"))
    out = run / run_files.EXPORTS / f"step-{step_of(path)}" if out is None else pathlib.Path(out)
    if (
        out.exists()
        and not (out / "model.safetensors").exists()
        and not (out / "model.safetensors.index.json").exists()
    ):
        raise InputError(f"--out={out} exists and holds no model: it would be replaced; name another directory")
    owner, lora = str(run.resolve()), model.LoraConfig(**config.get("lora", {}))
    beside = out.with_name(f"{out.name}-adapter")
    written = (out, beside) if lora.rank else (out,)
    for target in written:
        own = target.resolve().parent == (run / run_files.EXPORTS).resolve() or _exported_from(target) == owner
        if target.exists() and not own:
            raise InputError(
                f"--out={out}: {target} holds a model that is no export of {run}: name another directory, or remove it "
                "first"
            )
    if lora.rank:
        if record.get(CONTENTS, {}).get("model", mark := model_digest(source)) != mark:
            raise InputError(
                f"{source} is another model than the one that the adapters of {run} were trained beside: name that one "
                "by --model"
            )
        base, adapters = (
            model.load_params(source, shape),
            checkpoint.read_params(path, model.abstract_adapters(shape, lora)),
        )
        params = model.merged(model.with_adapters(base, adapters))
        model.save_adapter(beside, shape, lora, adapters, base=str(source), base_fingerprint=model.fingerprint(base))
    else:
        masters = model.abstract_params(shape, jnp.promote_types(jnp.dtype(shape.dtype), jnp.float32))
        params = checkpoint.read_params(path, masters)
    model.save_checkpoint(out, shape, params, tokenizer_from=source, dtype=shape.dtype)
    for target in written:
        run_files.write_atomic(target / EXPORTED, json.dumps({"run": owner}) + "\n")
    return out


def _exported_from(out: pathlib.Path) -> str:
    """The run that a directory is an export of; empty where nothing says."""
    try:
        return str(json.loads((out / EXPORTED).read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def step_of(path: pathlib.Path) -> int:
    """The step of the logs after which a checkpoint was written."""
    return int(checkpoint.read_loop(path)["ledger"]["step"])


class FleetFile:
    """Writes the file anew whenever it is called; a full disk is logged once, and ends nothing.

    Args:
      path: the run's directory.
    """

    def __init__(self, path: pathlib.Path):
        self._file = path / run_files.FLEET
        self._said = False

    def __call__(self, health: FleetHealth) -> None:
        """`written`, seconds since 1970, and the fields of `FleetHealth`."""
        content = {"written": round(time.time(), 1), **dataclasses.asdict(health)}
        try:
            run_files.write_atomic(self._file, json.dumps(content) + "\n")
        except OSError as error:
            if not self._said:
                LOG.warning("%s cannot be written, and tells nothing from now on: %s", self._file, error)
            self._said = True
