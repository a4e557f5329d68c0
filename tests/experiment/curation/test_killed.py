"""A real process is killed in the middle; the same command ends with the files of one that never was."""

import json
import signal

import pytest

from isocompute_jax.experiment.config import RunConfig, SamplingConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import curate
from isocompute_jax.tasks import ProblemFile, make_problems, write_problems
from tests.experiment.processes import wait_for

pytestmark = pytest.mark.slow

FILES = ("measured.jsonl", "all/train.jsonl", "all/validation.jsonl", "curation.json", "histogram.png")


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    write_problems(path, make_problems(100, seed=0))
    return path


@pytest.fixture(scope="module")
def arguments(base_run, problems):
    """Of a call of 100 or 200 groups, eight of which are out at a time."""
    return [
        *(f"--model={base_run.model}", f"--problems={problems}"),
        *("--sets=", "--set=all=0:1", "--validation_size=20", "--keep_completions", "--groups_in_flight=8"),
    ]


def contents(out):
    """Records and completions in any order."""
    files = {name: (out / name).read_bytes() for name in FILES}
    texts = b"".join(path.read_bytes() for path in sorted((out / "completions").iterdir()))
    lines = [json.loads(line) for line in (out / "counts.jsonl").read_text().splitlines()]
    lines = [{key: value for key, value in line.items() if key not in ("part", "end")} for line in lines]
    return files, sorted(map(json.dumps, lines)), sorted(texts.splitlines())


@pytest.fixture(scope="module")
def whole(base_run, problems, tmp_path_factory):
    """The same in this process, undisturbed."""
    out = tmp_path_factory.mktemp("whole")
    config = CurationConfig(
        samples=32, sets=(), ranges={"all": (0.0, 1.0)}, validation_size=20, groups_in_flight=8, keep_completions=True
    )
    source = RunConfig(model=base_run.model, sampling=SamplingConfig(max_rollouts_per_dispatch=1024))
    curate(ProblemFile(problems), out, source=source, config=config)
    return contents(out)


def test_a_killed_call_that_grows_ends_as_one_that_was_neither(arguments, processes, whole, tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    counts, module = out / "counts.jsonl", "isocompute_jax.curate"
    with processes.start(module, [*arguments, f"--out={out}", "--samples=16"], log) as call:
        wait_for(call, lambda: counts.exists() and counts.read_bytes().count(b"\n") >= 40)
        call.send(signal.SIGKILL)
        assert call.wait() == -signal.SIGKILL
    assert not (out / "measured.jsonl").exists()
    with processes.start(module, [*arguments, f"--out={out}", "--samples=32"], log) as call:
        assert call.wait() == 0 and "of 3200 rollouts are there already" in log.read_text(), log.read_text()
    assert contents(out) == whole
