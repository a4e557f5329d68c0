"""The stages of a study, in order; each does nothing when its result is there already.

base/       tokenizer, teacher's demonstrations -> base model (Hugging Face directory); not where a model is given
curated/    avg@16 of the base model on every problem -> Easy, Hard, mixtures
runs/       one sweep per slice, two runs at a time on two cores, or as jobs of a cluster's scheduler
report/     the answer, n*(C), figures, report.html
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import SUMMARY as CURATION_SUMMARY
from isocompute_jax.experiment.curation.curate import curate
from isocompute_jax.fit import AnalysisOptions, SweepResult, outputs
from isocompute_jax.fit.report.wording import Section
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.identity import differences
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.study import report_sections
from isocompute_jax.study.base_model import train_base_model
from isocompute_jax.study.presets import Preset, Slice
from isocompute_jax.sweeps.books import names_of, spent_device_hours
from isocompute_jax.sweeps.executor import run_sweep
from isocompute_jax.sweeps.grid import PlannedRun, grid
from isocompute_jax.sweeps.jobs import Job, Scheduler
from isocompute_jax.sweeps.scheduled import run_job, run_scheduled
from isocompute_jax.sweeps.watch import NO_LIMITS, Limits
from isocompute_jax.tasks import (
    ProblemFile,
    load_tokenizer,
    make_problems,
    make_teacher,
    read_problems,
    save_arithmetic_tokenizer,
    write_problems,
)

LOG = logging.getLogger(__name__)

IN_PROCESS = ServiceConfig()
CURATION = "curation"
"""Name of the curation's job."""
STUDY, BASE_FACTS, INPUTS = "study.json", "base_model.json", "inputs.json"


MakeScheduler = Callable[[pathlib.Path], Scheduler]
"""A cluster's scheduler, of the jobs whose books are kept in a directory."""


def prepare(preset: Preset, workdir: str | os.PathLike[str]) -> pathlib.Path:
    """Makes what is missing of a study's directory and base model; returns the directory."""
    root = pathlib.Path(workdir)
    open_study(preset, root)
    make_base_model(preset, root)
    return root


def run_study(
    preset: Preset,
    workdir: str | os.PathLike[str],
    *,
    workers: int | None,
    service: ServiceConfig = IN_PROCESS,
    cluster: MakeScheduler | None = None,
    limits: Limits = NO_LIMITS,
    only: Sequence[str] = (),
) -> list[pathlib.Path]:
    """Runs what is missing of a study and returns its reports, the first slice's first.

    Args:
      preset: what to run.
      workdir: the study's directory.
      workers: runs at a time; None for one per core (or per endpoint, where those are fewer), or what a cluster likes.
      service: where runs sample; it may change from one start to the next.
      cluster: who has the curation and the runs as jobs; None for this machine.
      limits: what ends it, or some of its runs, early; the budget is that of all slices together.
      only: names of the slices to run; all if empty.

    Raises:
      InputError: `workdir` holds another study, or there is no slice of a name.
      RunError: a training run failed (the others were finished first), or the budget is spent.
      KeyboardInterrupt: interrupted; the same call resumes it.
    """
    names = [part.name for part in preset.slices]
    if unknown := [name for name in only if name not in names]:
        raise InputError(f"the study has no slice {unknown[0]!r}; it has {', '.join(names)}")
    root = prepare(preset, workdir)
    make_problem_sets(preset, root, service, cluster)
    reports = []
    for part in preset.slices:
        if only and part.name not in only:
            continue
        train_slice(preset, part, root, workers=workers, service=service, cluster=cluster, limits=limits)
        reports.append(make_report(preset, part, root))
    return reports


def open_study(preset: Preset, root: pathlib.Path) -> None:
    """Makes the directory, or checks that it holds this very study; slices may have been added since."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / STUDY
    written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    there = {part["name"]: part for part in written.get("slices", ())}
    if written:
        changed = differences(dataclasses.replace(preset, slices=()), {**written, "slices": []}, "study")
        for part in preset.slices:
            changed += differences(part, there[part.name], f"study.slices.{part.name}") if part.name in there else []
        if changed:
            what = f"another study ({'; '.join(changed[:3])})"
            raise InputError(f"--workdir={root} holds {what}: choose another --workdir, or remove it")
    if not written or any(part.name not in there for part in preset.slices):
        run_files.write_atomic(path, json.dumps(dataclasses.asdict(preset), indent=1) + "\n")


def make_base_model(preset: Preset, root: pathlib.Path) -> None:
    """Tokenizer, problems, and the embedded base model, taught on the teacher's answers to them."""
    directory = root / "base"
    if preset.base is None or (directory / BASE_FACTS).exists():
        return
    LOG.info("Base model: %d steps of supervised learning from an imperfect teacher", preset.base.steps)
    problems = make_problems(preset.num_problems, seed=preset.base.seed)
    write_problems(root / "problems.jsonl", problems)
    tokenizer_directory = root / "tokenizer"
    save_arithmetic_tokenizer(tokenizer_directory)
    loss = train_base_model(
        directory,
        preset.base,
        problems=problems,
        teacher=make_teacher(preset.base.teacher_seed),
        tokenizer=load_tokenizer(tokenizer_directory),
        tokenizer_directory=tokenizer_directory,
    )
    facts = {"final_loss": loss, "steps": preset.base.steps}
    run_files.write_atomic(directory / BASE_FACTS, json.dumps(facts) + "\n")


def make_problem_sets(
    preset: Preset, root: pathlib.Path, service: ServiceConfig = IN_PROCESS, cluster: MakeScheduler | None = None
) -> None:
    """Curation with the base model, or with the one that was given."""
    out = root / "curated"
    if (out / CURATION_SUMMARY).exists():
        return
    if preset.base is not None:
        LOG.info("Curation: avg@%d of the base model on %d problems", preset.curation.samples, preset.num_problems)
        source = RunConfig(model=str(root / "base"), sampling=preset.run.sampling)
        curate(read_problems(root / "problems.jsonl"), out, source=source, config=preset.curation)
        return
    LOG.info("Curation: avg@%d of %s on %s", preset.curation.samples, preset.run.model, preset.problems)
    if cluster is None:
        source = dataclasses.replace(preset.run, service=service)
        problems = ProblemFile(preset.problems, grader_name=source.reward.name_for)
        curate(problems, out, source=source, config=preset.curation)
        return
    record = run_job(curation_job(preset, root.absolute()), cluster(root))
    if not (out / CURATION_SUMMARY).exists():
        raise RunError(f"the curation is not done ({record.state}: {record.reason}); the same command tries it again")


def curation_job(preset: Preset, root: pathlib.Path) -> Job:
    """The curation as a job of a scheduler."""
    config = root / "curation.config.json"
    run_files.write_atomic(config, json.dumps({"config": dataclasses.asdict(preset.run)}, indent=2) + "\n")
    return Job(
        name=CURATION,
        main="curate",
        workdir=root / "curated",
        flags=(
            *(f"--resolved_config={config}", "--trust_config", f"--problems={preset.problems}"),
            *curation_flags(preset.curation),
        ),
        model=preset.run.model,
        root=root,
    )


def curation_flags(config: CurationConfig) -> list[str]:
    """A curation's config as flags of its main."""
    plain = ("samples", "train_size", "validation_size", "seed", "solved_at", "groups_in_flight")
    found = [f"--{name}={getattr(config, name)}" for name in plain]
    found += [f"--sets={','.join(config.sets)}", f"--keep_completions={str(config.keep_completions).lower()}"]
    found += [f"--set={name}={low}:{high}" for name, (low, high) in config.ranges.items()]
    for name, shares in config.mixtures.items():
        found.append(f"--mixture={name}=" + ",".join(f"{part}:{share}" for part, share in shares.items()))
    return found


def planned_runs(
    preset: Preset, part: Slice, root: pathlib.Path, service: ServiceConfig = IN_PROCESS
) -> list[PlannedRun]:
    """The runs of a slice."""
    sets = root / "curated" / part.problem_set
    model = preset.run.model if preset.base is None else str(root / "base")
    config: RunConfig = override(dataclasses.replace(preset.run, service=service), "model", model)
    config = override(config, "train_set", str(sets / "train.jsonl"))
    held_out = {"validation": part.problem_set} | {name: name for name in part.evaluated if name != part.problem_set}
    files = {name: str(root / "curated" / chosen / "validation.jsonl") for name, chosen in held_out.items()}
    config = override(config, "evaluation.sets", files)
    for field, value in part.overrides.items():
        config = override(config, field, value)
    runs = grid(config, part.axes)
    if part.scheduled:
        fields = {name: (value,) for name, value in part.scheduled.items()}
        runs += grid(config, {**fields, "seed": part.axes["seed"]})
    return runs


def train_slice(
    preset: Preset,
    part: Slice,
    root: pathlib.Path,
    *,
    workers: int | None,
    service: ServiceConfig = IN_PROCESS,
    cluster: MakeScheduler | None = None,
    limits: Limits = NO_LIMITS,
) -> None:
    """The sweep of a slice."""
    runs = planned_runs(preset, part, root.absolute() if cluster else root, service)
    directory = root / "runs" / part.name
    missing = [run for run in runs if not (directory / run.name / run_files.DONE).exists()]
    if not missing:
        return
    LOG.info("Slice %s: %d runs to do, %d done. %s", part.name, len(missing), len(runs) - len(missing), part.question)
    limits = left_of(limits, preset, part, root)
    if cluster is None:
        result = run_sweep(runs, directory, num_workers=workers, limits=limits)
    else:
        result = run_scheduled(runs, directory, cluster(directory), at_once=workers, limits=limits)
    if result.halted:
        raise RunError(f"slice {part.name}: {result.halted}; the same command with a higher budget goes on")
    if result.interrupted:
        raise KeyboardInterrupt
    if result.failed:
        raise RunError(
            f"slice {part.name}: {len(result.failed)} of {len(runs)} runs failed: "
            + "; ".join(f"{name}: {reason}" for name, reason in result.failed.items())
        )


def left_of(limits: Limits, preset: Preset, part: Slice, root: pathlib.Path) -> Limits:
    """The limits of a slice: what the other slices have left of the budget."""
    if limits.max_device_hours is None:
        return limits
    directories = [root / "runs" / other.name for other in preset.slices if other is not part]
    spent = sum(spent_device_hours(directory, names_of(directory)) for directory in directories)
    return dataclasses.replace(limits, max_device_hours=max(limits.max_device_hours - spent, 0.0))


def make_report(preset: Preset, part: Slice, root: pathlib.Path) -> pathlib.Path:
    """The analysis of a slice, unless its report is newer than everything it rests on."""
    out = root / "report" if len(preset.slices) == 1 else root / "report" / part.name
    runs = root / "runs" / part.name
    inputs = {"study": fingerprint(root / STUDY), **{str(p.relative_to(root)): fingerprint(p) for p in logs(runs)}}
    marker = out / INPUTS
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == inputs:
        return out / outputs.REPORT
    LOG.info("Report: %s", out / outputs.REPORT)
    before, after = report_sections.sections(preset, part, root)

    def closing(result: SweepResult) -> list[Section]:
        theory = report_sections.theory_section(planned_runs(preset, part, root), result, out) if preset.base else []
        return [*theory, *after]

    outputs.analyse([runs], out, AnalysisOptions(title=part.question), before=before, after=closing)
    run_files.write_atomic(marker, json.dumps(inputs, indent=1) + "\n")
    return out / outputs.REPORT


def logs(runs: pathlib.Path) -> list[pathlib.Path]:
    """The evaluation logs below a directory."""
    return sorted(runs.glob(f"*/{run_files.EVAL}"))


def fingerprint(path: pathlib.Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
