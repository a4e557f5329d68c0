"""`python -m benchmarks.peers`: whole GRPO steps of this library, TRL and tunix, side by side on CPU.

    make peers-env
    python -m benchmarks.peers                          # all settings: about an hour on two idle cores
    python -m benchmarks.peers --settings=tiny --rounds=5
    python -m benchmarks.peers --settings=20m --passes=20m:trl:4
    python -m benchmarks.peers --settings=135m --dtype=bfloat16
    python -m benchmarks.peers --who=ours               # without the peers' environment

The same Hugging Face checkpoint, problems and batch for each: as many prompts, group size, longest completion, every
group in the loss, on-policy, one optimizer step per batch, one dtype, all cores that this process may use. Each run is
a process of its own; a round runs each once, in turn. BENCHMARKS.md says with which settings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from absl import flags

from benchmarks.peers import limit, run_ours, settings, table
from benchmarks.peers.job import Job, Timed
from benchmarks.shared import names, print_head
from isocompute_jax import app
from isocompute_jax.records.errors import InputError, RunError

WHO = ("ours", "trl", "tunix")
NAMES = {"ours": "ours", "trl": "TRL", "tunix": "tunix"}
ROOT = pathlib.Path(__file__).parents[2]

SETTINGS = flags.DEFINE_list("settings", ["tiny", "20m"], "What to measure: tiny, 20m, 135m, smoke.")
GROUP_SIZES = flags.DEFINE_list("group_sizes", [], "n; by default those of each setting.")
WHICH = flags.DEFINE_list("who", list(WHO), "Who runs, in this order.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "Runs of each.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 0, "Timed steps of each run; 0: the setting's own.", lower_bound=0)
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Of products; the peers' weights are in it too.")
DEVICES = flags.DEFINE_integer("devices", 1, "Parts of the CPU that our run takes for a device each.", lower_bound=1)
PASSES = flags.DEFINE_list("passes", [], "SETTING:WHO:N: a peer's loss and gradient in N parts, where that is quicker.")
PYTHON = flags.DEFINE_string("peers_python", str(ROOT / ".venv-peers/bin/python"), "Of the peers' environment.")
PROGRAMS = {"trl": "benchmarks.peers.run_trl", "tunix": "benchmarks.peers.run_tunix"}


def main() -> None:
    """Flags -> table."""
    check_flags()
    print_head(table.HEAD, left=(0, 2))
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in SETTINGS.value:
            setting, root = settings.SETTINGS[name], pathlib.Path(directory) / name
            settings.make_files(name, setting, root)
            for group_size in map(int, GROUP_SIZES.value or setting.group_sizes):
                job = settings.make_job(name, setting, root, group_size)
                measure(name, dataclasses.replace(job, steps=STEPS.value or job.steps, dtype=DTYPE.value), notes)
    print("\n" + "\n".join(notes.values()))


def measure(name: str, job: Job, notes: dict[str, str]) -> None:
    """Prints the lines of one setting and group size; notes its limit, and the versions of what ran."""
    setting = settings.SETTINGS[name]
    rounds: list[dict[str, table.Summary]] = []
    rates, lengths = [], []
    for number in range(ROUNDS.value):
        rounds.append({})
        for who in WHICH.value:
            timed = run(name, who, dataclasses.replace(job, directory=f"{job.directory}-{who}-{number}"))
            rounds[-1][NAMES[who]] = table.summary(timed, job.rollouts)
            notes[who] = f"{NAMES[who]}: {timed.versions}."
            lengths.append(timed.completion_tokens)
        rates.append(measured_rate())
    print("\n".join(table.lines(name, job.group_size, rounds)), flush=True)
    flops = limit.step_flops(setting.shape, job, prompt=settings.mean_prompt(job), completion=statistics.mean(lengths))
    notes[f"{name} {job.group_size}"] = table.limit_line(
        name, job.group_size, flops, statistics.median(rates), job.rollouts
    )


def check_flags() -> None:
    """Raises InputError for a name that there is not, and for peers without their environment."""
    for flag, known in ((SETTINGS, settings.SETTINGS), (WHICH, WHO)):
        names(flag, known)
    if set(WHICH.value) & set(PROGRAMS) and not pathlib.Path(PYTHON.value).exists():
        raise InputError(f"--peers_python = {PYTHON.value}: is not there; run `make peers-env`, or give --who=ours")


def passes_of(name: str, who: str) -> int:
    """Parts of a step's loss and gradient."""
    found = [text.split(":") for text in PASSES.value]
    if any(len(parts) != 3 or not parts[2].isdigit() for parts in found):
        raise InputError(f"--passes = {','.join(PASSES.value)}: must be SETTING:WHO:N, as in 20m:trl:4")
    return next((max(1, int(parts[2])) for parts in found if parts[:2] == [name, who]), 1)


def run(name: str, who: str, job: Job) -> Timed:
    """One run of one of them, in a process of its own."""
    if who == "ours":
        return run_ours.run(dataclasses.replace(job, devices=DEVICES.value))
    path = pathlib.Path(f"{job.directory}.json")
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(job, passes=passes_of(name, who)))))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    command = [PYTHON.value, "-m", PROGRAMS[who], str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    if done.returncode:
        raise RunError(f"{NAMES[who]} failed\n{done.stderr[-2000:]}")
    return Timed(**json.loads(done.stdout.splitlines()[-1]))


def measured_rate() -> float:
    """FLOP/s of a large product, of a process of its own as the runs are."""
    command = [sys.executable, "-m", "benchmarks.peers.limit", DTYPE.value]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(done.stdout) * 1e9


if __name__ == "__main__":
    app.run(main)
