"""The costs that docs and recipes state, made anew: each is compiled for its accelerators, which need not be there.

    python -m benchmarks.planned_costs                         # all, then the texts
    python -m benchmarks.planned_costs --cases='reproduce'     # those whose name has it, then the texts
    python -m benchmarks.planned_costs --texts                 # the texts alone, from docs/plans.json

Needs the compilers of `make aot-env`. It writes docs/plans.json, what stands between `<!-- planned: NAME -->` marks in
docs/*.md, and the sentence "Cost, by its plan" in the docstrings of configs. A case is compiled as soon as the next one
is asked for, and kept at once, so that a command that was stopped goes on with `--missing`. Nothing is run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags

from benchmarks import planned_texts
from isocompute_jax import app
from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.plan.cost import RunCost
from isocompute_jax.plan.courses import price_again
from isocompute_jax.plan.roofline import Range
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.printing import say
from isocompute_jax.records.run_files import write_atomic

ROOT = pathlib.Path(__file__).parents[1]
PLANS = ROOT / "docs/plans.json"
HARD, EASY = "configs/isocompute_hard_qwen2_5_7b.py", "configs/isocompute_easy_qwen2_5_7b.py"
BUDGETS = (32_768, 65_536, 131_072, 262_144, 524_288)
CURATED = 17_408 * 16
KEPT = (
    "topology", "devices", "versions", "rollouts", "steps", "updates_per_step", "needed", "free", "together", "unit",
    "sampler_devices", "asynchronous", "step_s", "sampling_s", "weights_s", "run_step_s", "parts", "device_hours",
    "wall_hours", "learner",
)  # fmt: skip
"""Figures of a plan that texts state, and those that price it."""

_CASES = flags.DEFINE_string("cases", "", "Compile the cases whose name has this text; left out, all.")
_MISSING = flags.DEFINE_bool("missing", False, "Of those, only the ones that docs/plans.json has not.")
_TEXTS = flags.DEFINE_bool("texts", False, "Compile nothing: write the texts of docs/plans.json.")


@dataclasses.dataclass(frozen=True)
class Case:
    """A run whose cost some text states."""

    config: str  # file, from the root
    # of the config, that are set as `--config.FIELD=VALUE` sets them
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    topology: str = ""  # the learner's; empty for the config's
    budgets: tuple[int, ...] = ()  # C for which the run is priced, too


def cases() -> dict[str, Case]:
    """By name."""
    host = {"mesh.fsdp": 4, "recipe.microbatch_tokens": 40_960, "plan.sampler_devices": 4}
    two = {"mesh.fsdp": 16, "recipe.microbatch_tokens": 163_840, "plan.sampler_devices": 16}
    slice_ = {"mesh.data": 4, "mesh.fsdp": 16, "recipe.microbatch_tokens": 655_360, "plan.sampler_devices": 64}
    longest = {"plan.median_tokens": 14_336, "plan.sigma": 0.0}
    found = {
        path.stem: Case(f"configs/{path.name}") for path in sorted((ROOT / "configs").glob("*.py")) if recipe(path)
    }
    layouts = sorted((ROOT / "configs/layouts").glob("*.py"))
    found |= {path.stem: Case(f"configs/layouts/{path.name}") for path in layouts if recipe(path)}
    found |= {
        f"reproduce_n{n}": Case(HARD, {**host, "group_size": n}, "h200:1x4", BUDGETS) for n in (8, 16, 32, 64, 128)
    }
    found |= {
        f"reproduce_b{problems}": Case(HARD, {**host, "problems_per_batch": problems}, "h200:1x4", BUDGETS)
        for problems in (32, 128, 256)
    }
    found["reproduce_easy"] = Case(EASY, host, "h200:1x4", BUDGETS)
    found |= {
        f"{name}_one_host": Case(f"configs/{name}.py", fields, "h200:1x4") for name, fields in halves(host).items()
    }
    found["in_process"] = Case(HARD, {"plan.sampler_devices": 0})
    found["scalerl_8b_longest"] = Case("configs/scalerl_8b.py", longest)
    found["cluster_two"] = Case(HARD, two, "h200:2x8")
    found["cluster_slice"] = Case(HARD, {**slice_, "group_size": 128}, "tpu:v5p:4x4x4")
    return found


def halves(host: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Recipes of which half a host can learn while the other half samples: name -> fields of `host`, and their own."""
    playbook = {
        f"isocompute_{kind}_{model}": host for kind in ("easy", "hard") for model in ("qwen3_4b", "llama3_1_8b")
    }
    rows = {"dr_grpo": 12 * 4096, "grpo_deepseek": 16 * 2048, "rloo": 8 * 4096}
    return playbook | {name: host | {"recipe.microbatch_tokens": tokens} for name, tokens in rows.items()}


def recipe(path: pathlib.Path) -> bool:
    """Whether a file of configs is a recipe that states its cost."""
    return "Cost, by its plan" in path.read_text(encoding="utf-8")


def main() -> None:
    """Flags -> docs/plans.json -> texts."""
    known = json.loads(PLANS.read_text(encoding="utf-8")) if PLANS.exists() else {}
    every = cases()
    plans = {name: known[name] for name in every if name in known}
    wanted = [] if _TEXTS.value else [name for name in every if _CASES.value in name]
    if not wanted and not _TEXTS.value:
        raise InputError(f"--cases={_CASES.value}: no case has that in its name; there are {', '.join(every)}")
    for name in wanted:
        if _MISSING.value and name in plans:
            continue
        say(f"compiling {name}", file=sys.stderr)
        plans[name] = planned(every[name])
        write(plans, every)
    if missing := [name for name in every if name not in plans]:
        raise RunError(f"docs/plans.json has not all cases, so that no text was written: {', '.join(missing)}")
    plans = {name: priced(every[name], plan["figures"]) for name, plan in plans.items()}
    write(plans, every)
    for path, text in planned_texts.texts(plans, ROOT).items():
        if (ROOT / path).read_text(encoding="utf-8") != text:
            write_atomic(ROOT / path, text)
            say(f"wrote {path}")


def write(plans: dict[str, Any], every: dict[str, Case]) -> None:
    """Writes docs/plans.json, in the order of the cases."""
    write_atomic(PLANS, json.dumps({name: plans[name] for name in every if name in plans}, indent=1) + "\n")


def planned(case: Case) -> dict[str, Any]:
    """The figures of one dry run, and its prices."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "plan.json"
        command = [sys.executable, "-m", "isocompute_jax.train", f"--config={case.config}", "--dry_run"]
        command += [f"--config.{field}={value}" for field, value in case.fields.items()]
        command += [f"--topology={case.topology}"] * bool(case.topology) + [f"--plan_out={out}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not out.exists():
            raise RunError(f"{case.config} was not planned: {done.stderr[-1000:]}")
        figures = json.loads(out.read_text(encoding="utf-8"))
    if not figures["fits"]:
        raise RunError(f"{case.config} does not fit: {figures['needed'] / 2**30:.1f} GiB")
    kept = {name: figures[name] for name in KEPT}
    return priced(case, kept)


def priced(case: Case, figures: dict[str, Any]) -> dict[str, Any]:
    """A case as docs/plans.json has it: what it costs, and what the run costs by the same programs in other ways.

    Those are budgets; and for the playbook's Hard recipe weights by NCCL, asynchronous training, and curation.
    """
    config = config_of(case)
    cost = price_again(config, figures)
    parts = {part.name: ends(part.device_hours) for part in cost.parts}
    figures |= plain(cost) | {"parts": parts, "learner": ends(cost.learner), "run_step_s": ends(cost.step)}
    figures["weights_s"] = ends(cost.weights)
    found: dict[str, Any] = {"config": case.config, "fields": case.fields, "figures": figures}
    if case.budgets:
        found["by_compute"] = {
            str(budget): plain(price_again(dataclasses.replace(config, max_compute=budget), figures))
            for budget in case.budgets
        }
    if case == Case(HARD):
        service = dataclasses.replace(config.service, push="nccl")
        over_nccl = dataclasses.replace(config, service=service)
        found["nccl"] = plain(price_again(over_nccl, figures))
        found["stale"] = plain(price_again(dataclasses.replace(over_nccl, max_staleness=8), figures))
        curated = dataclasses.replace(config, plan=dataclasses.replace(config.plan, curation_rollouts=CURATED))
        [found["curation"]] = [
            ends(part.device_hours) for part in price_again(curated, figures).parts if part.name == "curation"
        ]
    return found


def config_of(case: Case) -> RunConfig:
    """The config of a case, resolved."""
    spec = importlib.util.spec_from_file_location("case", ROOT / case.config)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    for field, value in case.fields.items():
        config = override(config, field, value)
    return config.resolved()


def plain(cost: RunCost) -> dict[str, Any]:
    """What texts need of a run's cost."""
    return {"device_hours": ends(cost.device_hours), "wall_hours": ends(cost.wall_hours), "learner": ends(cost.learner)}


def ends(found: Range) -> list[float]:
    """Both of them, without the digits that only floating point knows."""
    return [float(f"{end:.6g}") for end in (found.low, found.high)]


if __name__ == "__main__":
    app.run(main)
