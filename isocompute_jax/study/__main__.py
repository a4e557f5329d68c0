"""`python -m isocompute_jax.study`: the whole playbook in one command.

    python -m isocompute_jax.study --preset=quick --workdir=runs/study-quick

Makes a base model, measures and cuts problem sets, trains over a grid of rollouts per problem, fits the frontier and
writes report.html. With --endpoints the runs sample from a service (`make study-vllm`), each from servers of its own.
Interrupted (Ctrl-C), the same command resumes it; finished, it does nothing again.
"""

from __future__ import annotations

import os

from absl import flags

from isocompute_jax import app

PRESET = flags.DEFINE_enum(
    "preset",
    "quick",
    ["smoke", "quick", "full"],
    "smoke: a minute, to see that everything works. quick: the main question, n*(C) on Hard problems, a quarter of an "
    "hour on two cores. full: Easy, mixtures, fixed B, everything free, small problem sets, learning-rate rules.",
)
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the study; default runs/study-PRESET.")
WORKERS = flags.DEFINE_integer("workers", 0, "Training runs at a time; 0 for one per core.", lower_bound=0)

ENDPOINTS = flags.DEFINE_string(
    "endpoints",
    "",
    "Train on rollouts of these sampler servers, host:port,host:port, instead of sampling in the learner's process.",
)
TOKEN_FILE = flags.DEFINE_string("token_file", "", "File with the token that the servers ask for before new weights.")
BASE_ONLY = flags.DEFINE_bool("base_only", False, "End when the base model is there, which servers are started with.")


def main() -> None:
    """Flags -> one call."""
    root = WORKDIR.value or f"runs/study-{PRESET.value}"
    # One process per core does the heavy work; a compile cache serves them all, and the next start.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.abspath(os.path.join(root, "compile-cache")))

    from isocompute_jax.fit.outputs import HEADLINE
    from isocompute_jax.service.client.service_config import ServiceConfig
    from isocompute_jax.study.presets import PRESETS
    from isocompute_jax.study.report_sections import summary_of
    from isocompute_jax.study.stages import prepare, run_study

    if BASE_ONLY.value:
        prepare(PRESETS[PRESET.value], root)
        return
    service = ServiceConfig(endpoints=ENDPOINTS.value, token_file=TOKEN_FILE.value)
    for report in run_study(PRESETS[PRESET.value], root, workers=WORKERS.value or None, service=service):
        print(f"\n{summary_of(report)['flags']['title']}\n")
        headline = report.parent / HEADLINE
        if headline.exists():  # reports of releases before it have none
            print(headline.read_text(encoding="utf-8"))
        print(f"\nReport: {report}")


if __name__ == "__main__":
    app.run(main)
