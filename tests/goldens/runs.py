"""Two checkouts train the same short runs: whether what they write is the same to the bit, but for times.

    python -m tests.goldens.runs --old=../old --study=runs/study-quick --cases=gspo

Both run with this Python, each from its own root, on the base model and sets of a quick study. A case takes some ten
seconds in each. It prints the cases that differ, and where, and ends with 1 if there are any.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from absl import app, flags

from tests.goldens.goldens import differences

ROOT = pathlib.Path(__file__).parents[2]
COMPUTE = 1024
TIMES = (
    "wall_s", "device_hours", "learner_device_hours", "sampler_device_hours", "lost_device_hours", "phase_s", "speed",
)  # fmt: skip
"""Keys of the logs that no two runs share."""
LOGS = ("metrics.jsonl", "eval.jsonl", "rollouts.jsonl")

_OLD = flags.DEFINE_string("old", None, "Root of the other checkout.", required=True)
_STUDY = flags.DEFINE_string("study", "runs/study-quick", "Work directory of a quick study: its base model and sets.")
_CASES = flags.DEFINE_string("cases", "", "Run the cases whose name has this text; left out, all.")

Flags = tuple[str, ...]


def cases() -> dict[str, tuple[str, Flags]]:
    """Name -> config, and fields that are set: every recipe's twin, then layouts and losses of one of them."""
    found: dict[str, tuple[str, Flags]] = {
        path.stem: (f"configs/{path.name}", ()) for path in sorted((ROOT / "configs").glob("*_embedded.py"))
    }
    one = "configs/isocompute_hard_embedded.py"
    losses = ("reinforce", "clipped", "gspo", "cispo")
    found |= {
        f"loss_{name}": (one, (f"loss.policy_loss={name}", "recipe.aggregation=sequence_mean")) for name in losses
    }
    found["minibatches"] = (one, ("recipe.minibatches=2", "recipe.epochs=2", "loss.policy_loss=clipped"))
    found["layout_padded"] = (one, ("packing.trees=off",))
    found["layout_rows"] = (one, ("packing.trees=off", "packing.row_tokens=72"))
    found["layout_trees"] = (one, ("packing.trees=on",))
    found["entropy_and_kl"] = (one, ("recipe.healthy=none", "loss.entropy_coef=0.001", "loss.kl_coef=0.001"))
    found["mixed_precision"] = (one, ("dtype=bfloat16",))
    found["dynamic_sampling"] = (one, ("curriculum.dynamic_sampling=true",))
    return found


def train(checkout: pathlib.Path, config: str, fields: Flags, workdir: pathlib.Path) -> None:
    """Runs a case in a process; raises with the end of what it said."""
    study = pathlib.Path(_STUDY.value).resolve()
    values = [f"--config.{field}" for field in fields]
    for field, path in _paths(checkout, config, study).items():
        values.append(f"--config.{field}={path}")
    command = [sys.executable, "-m", "isocompute_jax.train", f"--config={config}", f"--workdir={workdir}"]
    command += [f"--config.max_compute={COMPUTE}", *values]
    environ = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{checkout}: {' '.join(command)}\n{done.stderr[-2000:]}")


def _paths(checkout: pathlib.Path, config: str, study: pathlib.Path) -> dict[str, str]:
    kind = "easy" if "easy" in config else "hard"
    sets = study / "curated" / kind
    return {
        "model": str(study / "base"),
        "train_set": str(sets / "train.jsonl"),
        "evaluation.sets.validation": str(sets / "validation.jsonl"),
    }


def written(workdir: pathlib.Path) -> dict[str, Any]:
    """The logs without times, and the exported weights."""
    logs: dict[str, Any] = {name: list(lines(workdir / name)) for name in LOGS if (workdir / name).exists()}
    weights = {path.name: path.read_bytes().hex() for path in sorted((workdir / "model").glob("*.safetensors"))}
    return logs | {"weights": weights}


def lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield {key: value for key, value in json.loads(line).items() if key not in TIMES}


def main(_: list[str]) -> None:
    old, moved = pathlib.Path(_OLD.value).resolve(), 0
    for name, (config, fields) in cases().items():
        if _CASES.value not in name:
            continue
        with tempfile.TemporaryDirectory() as directory:
            ours, theirs = pathlib.Path(directory, "new"), pathlib.Path(directory, "old")
            train(ROOT, config, fields, ours)
            train(old, config, fields, theirs)
            found = list(differences(written(theirs), written(ours), 0.0, relative=0.0))
        moved += bool(found)
        print(f"{name}: {'the same' if not found else f'{len(found)} differences'}", *found[:3], sep="\n  ", flush=True)
    sys.exit(1 if moved else 0)


if __name__ == "__main__":
    app.run(main)
