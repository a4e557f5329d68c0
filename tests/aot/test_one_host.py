"""What docs/one_host.md says fits: its own commands, planned for H200s, need what its table says."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "one_host.md").read_text(encoding="utf-8")
OF_THE_RUN = ("model", "train_set", "evaluation", "prompts", "service", "checkpoint_every_s")
"""Fields that name files of the reader's, or change no plan."""
CASES = {  # the command of so many GPUs -> the learner's, its share of one, servers, the table's row
    "8 GPUs": ("h200:1x4", None, 4, "**4 + 4** | Qwen2.5-7B"),
    "2 GPUs": ("h200:1x1", None, 1, "**1 + 1** | Qwen2.5-7B"),
    "1 GPU": ("h200:1x1", "0.6", 1, "**1, shared** | Qwen3-4B"),
}


def learner_of(name: str) -> list[str]:
    """The flags of the trainer in the page's command for so many GPUs, without what is the reader's own."""
    [command] = re.findall(rf"^\*\*{name}\*\*:.*?^(\.venv/bin/python launch/local\.py .*?)^```$", PAGE, re.M | re.S)
    words = shlex.split(command.replace("\\\n", " "))
    flags = words[words.index("isocompute_jax.train") + 1 :]
    assert f"--learner_gpus={CASES[name][0].rpartition('x')[2]}" in words
    return [flag for flag in flags if not re.match(rf"--(workdir|config\.({'|'.join(OF_THE_RUN)}))\b", flag)]


@pytest.mark.parametrize("name", CASES)
def test_a_command_of_the_page_fits_as_it_says(name, gpu, tmp_path):
    topology, share, servers, row = CASES[name]
    environ = {**os.environ, "ISOCOMPUTE_AOT_GPU_PYTHON": gpu.compiler.python}
    environ.pop("XLA_FLAGS", None)  # those of tests/conftest.py: the program is compiled as a user's
    if share:
        environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = share
    command = [sys.executable, "-m", "isocompute_jax.train", *learner_of(name), "--dry_run", f"--topology={topology}"]
    command += [f"--config.plan.sampler_devices={servers}", f"--plan_out={tmp_path / 'plan.json'}"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)  # 1: it does not fit
    [said] = re.findall(rf"^\| {re.escape(row)} \|[^|]*\| ([\d.]+) GiB", PAGE, re.M)
    needed = json.loads((tmp_path / "plan.json").read_text())["needed"] / 2**30
    assert needed == pytest.approx(float(said), abs=0.5)
