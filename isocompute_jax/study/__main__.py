r"""`python -m isocompute_jax.study`: the whole playbook in one command.

    python -m isocompute_jax.study --preset=quick --workdir=runs/study-quick
    python -m isocompute_jax.study --model=models/Qwen2.5-7B-Instruct --problems=problems.jsonl \
        --workdir=runs/study-7b --config=configs/isocompute_hard_qwen2_5_7b.py --group_sizes=8,16,32,64 --dry_run
    python -m isocompute_jax.study ... --executor=slurm --slurm_partition=h200 --slurm_nodes=2 --slurm_gpus_per_node=8 \
        --slurm_run='--server_nodes=1 --servers_per_node=8 --server_gpus=1 --engine=vllm'

A preset makes a base model, measures and cuts problem sets, trains over a grid of rollouts per problem, says how many
are best for which budget, and writes report.html. With --model and --problems the same is done to a checkpoint and
problems of your own: each set of --sets is swept over --group_sizes, from the config that --config gives. --dry_run
says what it takes, in device-hours where the config, or --topology, names accelerators. On a cluster the curation and
every run are jobs.

With --endpoints the runs sample from a service (`make study-vllm`), each from servers of its own. Interrupted (Ctrl-C),
the same command resumes it; finished, it does nothing again.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from absl import flags

from isocompute_jax import app
from isocompute_jax.compiling import use_training_cache
from isocompute_jax.drivers import check_driver_for_jax
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say
from isocompute_jax.sweeps.jobs import SlurmOptions
from isocompute_jax.sweeps.watch import Limits

with app.imports():
    from isocompute_jax.study.presets import OwnStudy

if TYPE_CHECKING:
    from isocompute_jax.study.presets import Preset
    from isocompute_jax.study.stages import MakeScheduler
    from isocompute_jax.sweeps.jobs import Scheduler

PRESET = flags.DEFINE_enum(
    "preset",
    "quick",
    ["smoke", "quick", "full", "other_base", "other_size", "llm", "llm_record", "llm_smoke"],
    "smoke: a few minutes, to see that everything works. quick: the main question, n*(C) on 64 Hard problems, a "
    "quarter of an hour on two cores. full: what docs/findings.md rests on, 19 sweeps in some hours: sizes of the "
    "problem set, B_problem, fixed B, rates, Easy, mixtures, KL and entropy terms, groups without signal. "
    "other_base, other_size: the main question again, for a base model taught for half as long, or twice as wide. llm: "
    "a published language model, SmolLM2-135M, on arithmetic in words. llm_record: the same with one n more, and three "
    "seeds. llm_smoke: a few minutes of it.",
)
MODEL = flags.DEFINE_string("model", None, "In place of a preset: Hugging Face directory of the model to study.")
PROBLEMS = flags.DEFINE_string(
    "problems",
    None,
    "Its problems: .jsonl or .parquet with id, prompt, answer, task, or what makes them: words:400,gym:chain_sum:200.",
)
CONFIG = flags.DEFINE_string(
    "config", None, "Config file that its runs start from; override fields by --config.FIELD=VALUE."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the study; default runs/study-PRESET.")
WORKERS = flags.DEFINE_integer(
    "workers", 0, "Training runs at a time, on a core each; 0 for as many as cores, 1 for one on all.", lower_bound=0
)
EXECUTOR = flags.DEFINE_enum("executor", "local", ["local", "slurm", "kubernetes"], "Who curates and runs the runs.")
KUBERNETES = flags.DEFINE_string(
    "kubernetes", None, "YAML file with what each run's JobSet has: fields of launch/kubernetes/render.py."
)
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print what would be run, and what it takes, and run nothing.")
TOPOLOGY = flags.DEFINE_string("topology", "", "Accelerators that --dry_run plans for; config.plan.topology if empty.")

ENDPOINTS = flags.DEFINE_string(
    "endpoints",
    "",
    "Train on rollouts of these sampler servers, host:port,host:port, instead of sampling in the learner's process.",
)
TOKEN_FILE = flags.DEFINE_string("token_file", "", "File with the token that the servers ask for before new weights.")
ONLY = flags.DEFINE_list("only", [], "Slices of the study to run, by name; all of them where it is not given.")
FIRST_SEED = flags.DEFINE_integer(
    "first_seed",
    0,
    "First seed of every configuration: with 4, seeds 4, 5, ... in place of 0, 1, ..., in another --workdir.",
    lower_bound=0,
)
FORECAST = flags.DEFINE_string(
    "forecast",
    "",
    "Existing directory: write what theory expects of each slice there, before it is run, and end. Problem sets must "
    "have been cut already.",
)
BASE_ONLY = flags.DEFINE_bool("base_only", False, "End when the base model is there, which servers are started with.")
define_flags(Limits)
define_flags(SlurmOptions)
OF_OWN = [*define_flags(OwnStudy).values(), *define_flags(CurationConfig).values()]


def main() -> None:
    """Flags -> one call."""
    check_flags()
    root = WORKDIR.value or f"runs/study-{PRESET.value}"
    use_training_cache()

    from isocompute_jax.fit.outputs import HEADLINE
    from isocompute_jax.service.client.service_config import ServiceConfig
    from isocompute_jax.study.presets import from_seed
    from isocompute_jax.study.report_sections import title_of
    from isocompute_jax.study.stages import prepare, run_study

    chosen = from_seed(preset(), FIRST_SEED.value)
    if DRY_RUN.value:
        from isocompute_jax.study.plan import print_study

        print_study(chosen, pathlib.Path(root), TOPOLOGY.value)
        return
    if FORECAST.value:
        from isocompute_jax.study.plan import write_forecasts

        for path in write_forecasts(chosen, pathlib.Path(root), pathlib.Path(FORECAST.value), ONLY.value):
            say(path)
        return
    if EXECUTOR.value == "local":
        check_driver_for_jax()
    if BASE_ONLY.value:
        prepare(chosen, root)
        return
    service = ServiceConfig(endpoints=ENDPOINTS.value, token_file=TOKEN_FILE.value)
    reports = run_study(
        chosen,
        root,
        workers=WORKERS.value or None,
        service=service,
        cluster=cluster(),
        limits=from_flags(Limits),
        only=ONLY.value,
    )
    for report in reports:
        say(f"\n{title_of(report)}\n")
        headline = report.parent / HEADLINE
        if headline.exists():  # reports of releases before it have none
            say(headline.read_text(encoding="utf-8"), end="")
        say(f"Report: {report}")


def check_flags() -> None:
    """Raises InputError for flags that do not go together."""
    if bool(MODEL.value) != bool(PROBLEMS.value):
        raise InputError("give both --model and --problems, or neither for the embedded study of --preset")
    if MODEL.value and not WORKDIR.value:
        raise InputError("--workdir is missing: say where the study of --model goes")
    others = [PRESET, BASE_ONLY, FORECAST] if MODEL.value else [CONFIG, *OF_OWN]
    if given := [flag.name for flag in others if flag.present]:
        what = "a study of --model and --problems" if MODEL.value else "a preset; it goes with --model and --problems"
        raise InputError(f"--{given[0]} is no flag of {what}")
    if EXECUTOR.value != "local" and not MODEL.value:
        raise InputError(f"--executor={EXECUTOR.value} is for studies of --model and --problems: presets take minutes")
    if EXECUTOR.value != "local" and ENDPOINTS.value:
        raise InputError(f"--endpoints: with --executor={EXECUTOR.value} every run starts servers of its own")


def preset() -> Preset:
    """What to run."""
    from isocompute_jax.experiment.config import from_dict
    from isocompute_jax.study.presets import PRESETS, default_run, own_preset

    if not (MODEL.value and PROBLEMS.value):
        chosen = PRESETS[PRESET.value]
        if chosen.base is None and not pathlib.Path(chosen.run.model).is_dir():
            raise InputError(f"--preset={PRESET.value} studies {chosen.run.model}, which is missing: run `make smollm`")
        return chosen
    run = from_dict(app.config_values()) if CONFIG.value else default_run()
    own, curation = from_flags(OwnStudy), from_flags(CurationConfig, ranges={}, mixtures={})
    return own_preset(run, model=MODEL.value, problems=PROBLEMS.value, own=own, curation=curation)


def cluster() -> MakeScheduler | None:
    """Who has the jobs; None for this machine."""
    if EXECUTOR.value == "local":
        return None
    from isocompute_jax.sweeps.jobs import make_scheduler

    def scheduler(root: pathlib.Path) -> Scheduler:
        return make_scheduler(EXECUTOR.value, root, slurm=from_flags(SlurmOptions), kubernetes=KUBERNETES.value or "")

    return scheduler


if __name__ == "__main__":
    app.run(main)
