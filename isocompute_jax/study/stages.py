"""The stages of a study, in order; each does nothing when its result is there already.

base/       tokenizer, teacher's demonstrations -> base model (Hugging Face directory)
curated/    avg@16 of the base model on every problem -> Easy, Hard, mixtures
runs/       one sweep per slice, two runs at a time on two cores
report/     fits, frontier, n*(C), figures, report.html
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import pathlib

from isocompute_jax.experiment.base_model import train_base_model
from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.experiment.curation.curate import SUMMARY as CURATION_SUMMARY
from isocompute_jax.experiment.curation.curate import curate
from isocompute_jax.experiment.curation.samplers import Source
from isocompute_jax.fit import outputs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.identity import differences
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.study import report_sections
from isocompute_jax.study.presets import Preset, Slice
from isocompute_jax.sweeps.executor import run_sweep
from isocompute_jax.sweeps.grid import PlannedRun, grid
from isocompute_jax.tasks import (
    load_tokenizer,
    make_problems,
    make_teacher,
    read_problems,
    save_arithmetic_tokenizer,
    write_problems,
)

LOG = logging.getLogger(__name__)

IN_PROCESS = ServiceConfig()
STUDY, BASE_FACTS, INPUTS = "study.json", "base_model.json", "inputs.json"


def prepare(preset: Preset, workdir: str | os.PathLike[str]) -> pathlib.Path:
    """Makes what is missing of a study's directory and base model; returns the directory."""
    root = pathlib.Path(workdir)
    open_study(preset, root)
    make_base_model(preset, root)
    return root


def run_study(
    preset: Preset, workdir: str | os.PathLike[str], *, workers: int | None, service: ServiceConfig = IN_PROCESS
) -> list[pathlib.Path]:
    """Runs what is missing of a study and returns its reports, the first slice's first.

    Args:
      preset: what to run.
      workdir: the study's directory.
      workers: runs at a time; None for one per core (or per endpoint, where those are fewer).
      service: where runs sample; it may change from one start to the next.

    Raises:
      InputError: `workdir` holds another study.
      RunError: a training run failed (the others were finished first).
      KeyboardInterrupt: interrupted; the same call resumes it.
    """
    root = prepare(preset, workdir)
    make_problem_sets(preset, root)
    reports = []
    for part in preset.slices:
        train_slice(preset, part, root, workers=workers, service=service)
        reports.append(make_report(preset, part, root))
    return reports


def open_study(preset: Preset, root: pathlib.Path) -> None:
    """Makes the directory, or checks that it holds this very study."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / STUDY
    if not path.exists():
        run_files.write_atomic(path, json.dumps(dataclasses.asdict(preset), indent=1) + "\n")
        return
    changed = differences(preset, json.loads(path.read_text(encoding="utf-8")), "study")
    if changed:
        raise InputError(
            f"--workdir={root} holds another study ({'; '.join(changed[:3])}): choose another --workdir, or remove it"
        )


def make_base_model(preset: Preset, root: pathlib.Path) -> None:
    """Tokenizer, problems, and the embedded base model, taught on the teacher's answers to them."""
    directory = root / "base"
    if (directory / BASE_FACTS).exists():
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


def make_problem_sets(preset: Preset, root: pathlib.Path) -> None:
    """Curation with the base model."""
    out = root / "curated"
    if (out / CURATION_SUMMARY).exists():
        return
    LOG.info("Curation: avg@%d of the base model on %d problems", preset.curation.samples, preset.num_problems)
    curate(
        read_problems(root / "problems.jsonl"),
        out,
        source=Source(str(root / "base"), preset.run.sampling),
        config=preset.curation,
    )


def planned_runs(
    preset: Preset, part: Slice, root: pathlib.Path, service: ServiceConfig = IN_PROCESS
) -> list[PlannedRun]:
    """The runs of a slice."""
    sets = root / "curated" / part.problem_set
    config: RunConfig = override(dataclasses.replace(preset.run, service=service), "model", str(root / "base"))
    config = override(config, "train_set", str(sets / "train.jsonl"))
    config = override(config, "evaluation.sets", {"validation": str(sets / "validation.jsonl")})
    for field, value in part.overrides.items():
        config = override(config, field, value)
    return grid(config, part.axes, max_rollouts_per_step=part.max_rollouts_per_step)


def train_slice(
    preset: Preset, part: Slice, root: pathlib.Path, *, workers: int | None, service: ServiceConfig = IN_PROCESS
) -> None:
    """The sweep of a slice."""
    runs = planned_runs(preset, part, root, service)
    missing = [run for run in runs if not (root / "runs" / part.name / run.name / run_files.DONE).exists()]
    if not missing:
        return
    LOG.info("Slice %s: %d runs to do, %d done. %s", part.name, len(missing), len(runs) - len(missing), part.question)
    result = run_sweep(runs, root / "runs" / part.name, num_workers=workers)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.failed:
        raise RunError(
            f"slice {part.name}: {len(result.failed)} of {len(runs)} runs failed: "
            + "; ".join(f"{name}: {reason}" for name, reason in result.failed.items())
        )


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
    outputs.analyse([runs], out, AnalysisOptions(title=part.question, records="strict"), before=before, after=after)
    run_files.write_atomic(marker, json.dumps(inputs, indent=1) + "\n")
    return out / outputs.REPORT


def logs(runs: pathlib.Path) -> list[pathlib.Path]:
    """The evaluation logs below a directory."""
    return sorted(runs.glob(f"*/{run_files.EVAL}"))


def fingerprint(path: pathlib.Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
