"""The script for an H200, on a CPU: what it does with failures, and all of it in tiny."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from benchmarks import h200_runs
from benchmarks.h200_cases import Case, cases
from benchmarks.h200_tables import HEADS, tables

ROOT = pathlib.Path(__file__).parents[2]
LEARNER = Case("learner_7b", "learner", row_tokens=256)


def script(*arguments: str) -> str:
    environment = {**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    command = ["benchmarks/h200.sh", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_learner_takes_the_first_kernel_that_works(tmp_path, monkeypatch):
    tried = []

    def run(case, *, deadline, limit_s):
        tried.append(case.attention)
        return {"kind": case.kind, "name": case.name, "status": "ok" if case.attention == "triton" else "failed"}

    monkeypatch.setattr(h200_runs, "run", run)
    results = h200_runs.Results(tmp_path / "results.jsonl")

    def measured():
        tried.clear()
        kernels = ("mosaic", "triton", "chunked")
        return [x["status"] for x in h200_runs.measured(LEARNER, results, kernels, deadline=0.0, limit_s=1.0)]

    assert measured() == ["failed", "ok"] and tried == ["mosaic", "triton"]
    alone = dataclasses.asdict(dataclasses.replace(LEARNER, kind="attention", attention="mosaic"))
    results.add({"kind": "attention", "case": alone, "status": "failed"})
    results = h200_runs.Results(tmp_path / "results.jsonl")  # as a later call reads them
    assert measured() == ["ok"] and tried == ["triton"]


def test_what_fails_says_why():
    late = h200_runs.run(LEARNER, deadline=time.monotonic() + 1, limit_s=10)
    assert late["status"] == "skipped" and late["why"] == "1 s were left of --budget_s"
    trace = (
        "Traceback (most recent call last):\n  File x\njax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out\n\nmore\n"
    )
    assert h200_runs.reason_of(trace) == "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out"
    assert h200_runs.reason_of("a warning\nerror: torch is not installed\n") == "error: torch is not installed"


def test_kernels_that_are_missing_are_said_first(tmp_path, monkeypatch):
    """In a process that finds a tokamax that does not import, and asks no device."""
    (tmp_path / "tokamax.py").write_text("import jax\nassert jax.config.jax_platforms == 'cpu'\nraise KeyError('x')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    lines = list(h200_runs.missing_kernels(("mosaic", "triton", "chunked")))
    assert [line["name"] for line in lines] == ["mosaic", "triton"]
    assert "tokamax is installed and does not import (KeyError: 'x')" in lines[0]["why"]


def test_tables_hold_every_kind_and_what_failed():
    assert {case.kind for case in cases(small=True)} == {case.kind for case in cases(small=False)} == set(HEADS)
    lines = [{"kind": kind, "name": kind, "status": "failed", "why": "no reason"} for kind in HEADS]
    lines += [{"kind": "missing", "name": "mosaic", "why": "tokamax is not installed"}]
    learned = {"seconds": 2.0, "tokens_per_s": 128.0, "mfu": 0.5, "predicted_bytes": 2**31, "compile_s": 7.0}
    learned |= {"predicted_not_tuned_bytes": 2**32, "compile_not_tuned_s": 5.0, "attention": "mosaic"}
    done = {"kind": "learner", "name": "ours", "status": "ok", "case": dataclasses.asdict(LEARNER)} | learned
    theirs = {**done, "kind": "torch", "name": "theirs", "seconds": 4.0}
    text = "\n".join(tables([{"kind": "versions", "jax": "1", "tokamax": None}, *lines, done, theirs]))
    assert text.startswith("jax 1, tokamax -\nMissing: mosaic: tokamax is not installed\n")
    assert text.count("failed: no reason") == len(HEADS)
    assert "| ours | dots, float32, mosaic | 2.000 | 128 | 50.0% | - | 2.00 | 4.00 | 7 s | 5 s |" in text
    assert "| theirs | 4.000 | 128 | 0.50 of it | - |" in text
    assert (
        len({line.count("|") for line in text.splitlines() if line.startswith(("| ours", "| learner", "| upd"))}) == 1
    )


@pytest.mark.slow
def test_all_of_it_in_tiny(tmp_path):
    printed = script("--small", f"--out={tmp_path}", "--attention=mosaic,chunked")
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    versions, *found = [line for line in lines if line["kind"] != "missing"]
    assert versions["jax"] and versions["python"]
    for line in found:  # the kernel for GPUs says why it is not there, and learners do not try it again
        refused = line["kind"] == "attention" and line["case"]["attention"] == "mosaic"
        assert line["status"] == ("failed" if refused else "ok"), line
        assert not refused or "made for GPUs, and this is a CPU" in line["why"]
    assert [line["kind"] for line in found] == [case.kind for case in cases(small=True)]
    learned = [line for line in found if line["kind"] == "learner"]
    for line in learned:
        assert 0 < line["mfu"] < 1 and line["predicted_bytes"] > 3 * 4 * line["parameters"]
        assert line["gradient_norm"] > 0
    assert printed.count("| --:") >= 5 and "made for GPUs" in printed
    assert script("--small", "--parts=", f"--out={tmp_path}") == printed
