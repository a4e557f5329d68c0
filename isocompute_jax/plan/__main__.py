"""`python -m isocompute_jax.plan`: the plans of several configs in one table.

    python -m isocompute_jax.plan
    python -m isocompute_jax.plan --configs=configs/dapo.py,configs/cispo_minimax_m1.py

Left out, `--configs` are those of configs/layouts. Each is compiled for the topology that it names by a process of its
own (`python -m isocompute_jax.train --dry_run` shows one in full). The table is Markdown.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.printing import say

CONFIGS = flags.DEFINE_list("configs", [], "Config files that name a topology; left out, those of configs/layouts.")


def main() -> None:
    """Flags -> one table."""
    from isocompute_jax.plan.report import table

    paths = CONFIGS.value or sorted(map(str, pathlib.Path("configs/layouts").glob("*.py")))
    if not paths:
        raise InputError("there is no configs/layouts in this directory: give --configs=FILE,...")
    plans = {pathlib.Path(path).stem: planned(path) for path in paths}
    say("\n".join(table(plans)))
    if misfits := [name for name, plan in plans.items() if not plan["fits"]]:
        raise RunError(f"these do not fit: {', '.join(misfits)}")


def planned(config: str) -> dict[str, Any]:
    """The figures of one dry run; its report goes to standard error.

    Raises:
      InputError: the config or its compiler is refused.
      RunError: the compiler failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "plan.json")
        command = [sys.executable, "-m", "isocompute_jax.train", f"--config={config}", "--dry_run", f"--plan_out={out}"]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode == app.BAD_INPUT:
            raise InputError(f"--configs: {config} cannot be planned (see above)")
        if not os.path.exists(out):
            raise RunError(f"{config}: the dry run failed (see above)")
        return json.loads(pathlib.Path(out).read_text(encoding="utf-8"))


if __name__ == "__main__":
    app.run(main)
