"""`python -m isocompute_jax.plan`: the plans of several configs in one table.

    python -m isocompute_jax.plan
    python -m isocompute_jax.plan --configs=configs/h200_1x8_dense8b_16k.py,configs/h200_2x8_dense8b_32k.py

Left out, `--configs` are those in configs/ that name a topology: the layouts of real models. Each is compiled for it by
a process of its own (`python -m isocompute_jax.train --dry_run` shows one in full). The table is Markdown.
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

CONFIGS = flags.DEFINE_list("configs", [], "Config files; left out, those of configs/ that name a topology.")


def main() -> None:
    """Flags -> one table."""
    from isocompute_jax.plan.tables import named_layouts, table

    paths = CONFIGS.value or named_layouts(pathlib.Path("configs"))
    if not paths:
        raise InputError("no config in configs/ names a topology (config.plan.topology): give --configs=FILE,...")
    plans = {pathlib.Path(path).stem: planned(path) for path in paths}
    print("\n".join(table(plans)))
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
