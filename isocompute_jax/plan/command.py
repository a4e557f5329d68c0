"""`--dry_run` of the train main: in this process, or in one whose Python has the topology's compiler."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Sequence

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.plan.compilers import find_compiler
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say
from isocompute_jax.records.run_files import write_atomic

CHILD = "ISOCOMPUTE_AOT_PROCESS"
"""Set, to the kind of compiler, in the process that has one."""


def run(config: RunConfig, topology_name: str | None, *, arguments: Sequence[str], out: str | None) -> int:
    """Prints the plan of a config, and returns an exit code: 0 where it fits, 1 where it does not.

    Args:
      config: as it was given.
      topology_name: `--topology`; None for that of the config, or this machine's devices.
      arguments: of the train main, for a process that has to do it in this one's place.
      out: file for the figures, as JSON; None for none.

    Raises:
      InputError: a bad config or topology, or a compiler that is not installed.
    """
    from isocompute_jax.plan.topology import parse_topology

    resolved = config.resolved()
    topology = parse_topology(topology_name or config.plan.topology or "here")
    if topology.compiler is not None and os.environ.get(CHILD) != topology.compiler:
        compiler = find_compiler(topology.compiler)
        command = [compiler.python, "-m", "isocompute_jax.train", *arguments]
        done = subprocess.run(command, env=compiler.environment | {CHILD: topology.compiler}, check=False)
        return done.returncode
    logging.getLogger("absl").setLevel(logging.ERROR)  # tokamax warns of each kernel that it has not tuned
    from isocompute_jax.plan.dry_run import dry_run
    from isocompute_jax.plan.report import figures, report

    plan = dry_run(resolved, topology)
    say(report(plan), end="")
    if out:
        try:
            write_atomic(out, json.dumps(figures(plan), indent=1) + "\n")
        except OSError as error:
            raise InputError(f"--plan_out={out} cannot be written: {error.strerror}") from error
    return 0 if plan.fits else 1
