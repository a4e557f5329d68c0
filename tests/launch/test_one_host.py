"""docs/one_host.md: its rehearsal is copied and run, beside a stand-in of nvidia-smi and with JAX servers."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.launch import processes

PAGE = processes.ROOT / "docs" / "one_host.md"
VLLM = "--engine=vllm --server_python=.venv-vllm/bin/python"


def rehearsal(name: str) -> list[str]:
    """The commands of the page's last section: prepare, start, kill, export. Another name keeps tests apart."""
    section = PAGE.read_text(encoding="utf-8").partition("## Rehearse it without a GPU\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```bash\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert len(found) == 4 and VLLM in found[1]
    return [text.replace("runs/rehearsal", f"runs/{name}") for text in found]


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """What the commands find in a checkout."""
    for name in ("launch", "configs"):
        (tmp_path / name).symlink_to(processes.ROOT / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_a_small_qwen3_trains_is_killed_resumes_and_is_exported(folder):
    name = f"rehearsal-{os.getpid()}"
    prepare, start, kill, export = rehearsal(name)
    start = start.replace(VLLM, "--engine=jax").replace("--config.max_compute=4096", "--config.max_compute=1024")
    environ = {**os.environ, "PYTHONPATH": str(processes.ROOT)}
    run, metrics = folder / "runs" / name / "run", folder / "runs" / name / "run" / "metrics.jsonl"

    def shell(text: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-ec", text]
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)

    done = shell(f"{prepare}\nenv -0 > environment")
    assert done.returncode == 0, done.stderr
    assert "NVIDIA H200" in done.stdout
    exported = (pair.partition("=") for pair in (folder / "environment").read_text().rstrip("\0").split("\0"))
    environ |= {key: value for key, _, value in exported}
    log = folder / "log"
    with processes.start(["bash", "-ec", start], log, cwd=folder, env=environ) as first:
        try:
            processes.wait_until(lambda: first.poll() is not None or lines(metrics) >= 3, "three steps")
            done = shell(kill)
            assert done.returncode == 0, (done.stderr, log.read_text())
            assert json.loads(done.stdout)["step"] >= 3
            first.wait(60)
        finally:
            first.kill()
            shell(kill)
    assert "learner 0: GPU 0, 1; server 0: GPU 2; server 1: GPU 3\n" in log.read_text()
    assert not (run / "model").exists()
    done = shell(start)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr and lines(metrics) == 16
    done = shell(export)
    assert done.returncode == 0, done.stderr
    untrained = (folder / "runs" / name / "qwen3" / "model.safetensors").read_bytes()
    for made in (run / "model", folder / "runs" / name / "exported"):
        assert json.loads((made / "config.json").read_text())["model_type"] == "qwen3"
        assert (made / "model.safetensors").read_bytes() != untrained


def lines(file: pathlib.Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0
