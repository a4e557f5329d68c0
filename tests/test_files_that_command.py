"""What files that others made may do: the page docs/trust.md has a row for each kind, and here each row is attacked.

Nothing of an attack is simulated but its aim: what would be run touches a file, and who would be asked does not exist.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import pickle
import re
import textwrap
from collections.abc import Callable

import pytest
import sympy.parsing.sympy_parser

from isocompute_jax import model
from isocompute_jax.experiment import workdir
from isocompute_jax.experiment.config import RunConfig, check_trusted, from_dict, read_resolved
from isocompute_jax.experiment.workdir import export_checkpoint
from isocompute_jax.fit import outputs
from isocompute_jax.fit.report import wording
from isocompute_jax.learner import checkpoint
from isocompute_jax.records import checksums, run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.service.client.service_config import EndpointsFile
from isocompute_jax.sweeps import books
from isocompute_jax.sweeps.grid import PlannedRun
from isocompute_jax.tasks import PromptConfig, Prompts, load_tokenizer, read_problems, save_arithmetic_tokenizer
from isocompute_jax.tasks.graders import gym
from isocompute_jax.theory.forecast import read_forecast
from isocompute_jax.theory.pass_rates import read_pass_rates
from isocompute_jax.watching.watched_runs import WatchedRuns
from tests import mains
from tests.model import tiny

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "trust.md"


class Attack:
    """Where an attack is made, and what it aims at.

    Attributes:
      folder: of the files that were handed on.
      outside: a directory of the user's, with files that must stay as they are.
      ran: is there when code was run.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder, self.outside, self.ran = folder / "handed_on", folder / "outside", folder / "ran"
        self.folder.mkdir()
        self.outside.mkdir()
        for name in (".bashrc", "keys", "metrics.jsonl"):
            (self.outside / name).write_text("the user's\n")
        (self.folder / "evil.py").write_text(f"open({str(self.ran)!r}, 'w')\n")

    @property
    def code(self) -> str:
        return f"__import__('os').system('touch {self.ran}')"

    @property
    def held(self) -> bool:
        """Nothing was run, and nothing of the user's changed."""
        files = {path.name: path.read_text() for path in self.outside.iterdir()}
        return not self.ran.exists() and files == dict.fromkeys((".bashrc", "keys", "metrics.jsonl"), "the user's\n")


def problems(attack: Attack) -> None:
    for task in ("evil:grade", "http://127.0.0.1:9/steal", "os:system", "__main__:grade", "https://a.example/,evil:f"):
        path = attack.folder / "problems.jsonl"
        path.write_text(json.dumps({"prompt": "1+1=", "answer": "2", "task": task}) + "\n")
        with pytest.raises(InputError, match=re.escape(f"{path}:1: task: {task!r} is a")):
            read_problems(path, grader_name=RunConfig().reward.name_for)
    for main in (
        ["convert", f"--source={path}", "--show=1"],
        ["split", f"--source={path}", f"--out={attack.folder / 'sets'}"],
    ):
        with pytest.raises(InputError, match=re.escape(f"{path}:1: task")):
            _main(*main)


def answers(attack: Attack) -> None:
    with gym._only_values():
        for read in (gym._value, sympy.parsing.sympy_parser.parse_expr):
            with pytest.raises((ValueError, SyntaxError)):
                read(attack.code)


def models(attack: Attack) -> None:
    path = attack.folder / "model"
    config = tiny.tiny_config()
    save_arithmetic_tokenizer(path)
    model.save_checkpoint(path, config, tiny.random_params(config), tokenizer_from=None)
    save_arithmetic_tokenizer(path)
    (path / "evil.py").write_text((attack.folder / "evil.py").read_text())
    for name, classes in (("tokenizer_config.json", "AutoTokenizer"), ("config.json", "AutoConfig")):
        content = json.loads((path / name).read_text())
        content |= {"auto_map": {classes: "evil.Evil"}, "tokenizer_class": "Evil"}
        (path / name).write_text(json.dumps(content))
    (path / "chat_template.jinja").write_text(
        "{{ cycler.__init__.__globals__.os.system('touch " + str(attack.ran) + "') }}"
    )
    with pytest.raises(InputError, match=r"chat template refuses .* is unsafe"):
        Prompts(load_tokenizer(path), PromptConfig("on")).encode([Problem("p", "1+1=", "2", "exact")])
    (path / "model.safetensors").rename(attack.folder / "elsewhere.safetensors")
    for name in ("../elsewhere.safetensors", str(attack.folder / "elsewhere.safetensors")):
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
        with pytest.raises(InputError, match="is no file beside it"):
            model.load_params(path, config)
    (path / "model.safetensors.index.json").unlink()
    (path / "pytorch_model.bin").write_bytes(_pickle_of(attack))
    (path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        model.load_params(path, config)


def configs(attack: Attack) -> None:
    path = attack.folder / "config.json"
    fields = {
        "reward": {"function": "evil:grade"},
        "reward.tasks": {"reward": {"tasks": {"numeric": "http://127.0.0.1:9/steal"}}},
        "reward.allow": {"reward": {"allow": ["evil:grade"]}},
        "reward.environment": {"reward": {"environment": ["HOME"]}},
        "service.endpoints": {"service": {"endpoints": "127.0.0.1:9"}},
        "service.token_file": {"service": {"token_file": str(attack.outside / "keys")}},
        "service.shared_dir": {"service": {"shared_dir": str(attack.outside)}},
        "track.wandb": {"track": {"wandb": "theirs"}},
    }
    for name, values in fields.items():
        path.write_text(json.dumps({"config": values if name != "reward" else {"reward": values}}))
        config = read_resolved(path, "--resolved_config")
        with pytest.raises(InputError, match=rf"{name}.*add --trust_config"):
            check_trusted(config, path)
    path.write_text(
        json.dumps({"config": {"service": {"endpoints": "127.0.0.1:9"}, "reward": {"function": "gym:dice"}}})
    )
    check_trusted(read_resolved(path, "--resolved_config"), path, given=["service.endpoints"])
    facts = {field.name: 1 for field in dataclasses.fields(run_files.RunFacts)}
    path.write_text(
        json.dumps({"config": {"model": "m", "train_set": "t", "reward": {"function": "evil:grade"}}, **facts})
    )
    for main in (
        ["train", f"--resolved_config={path}", f"--workdir={attack.folder / 'run'}"],
        ["curate", f"--resolved_config={path}", "--problems=p.jsonl", f"--out={attack.folder / 'curated'}"],
    ):
        with pytest.raises(InputError, match=r"names what a file may not by itself: reward\.function = 'evil:grade'"):
            _main(*main)


def run_directories(attack: Attack) -> None:
    """Without the check the lock's file was emptied, logs were appended to, and every hidden file was removed."""
    run = attack.folder / "run"
    for name, target in ((".lock", "keys"), ("metrics.jsonl", "metrics.jsonl"), ("exports", ""), ("checkpoints", "")):
        run.mkdir()
        (run / name).symlink_to(attack.outside / target)
        for use in (lambda: workdir.locked(run, "run").__enter__(), lambda: export_checkpoint(run)):
            with pytest.raises(InputError, match=rf"{name} is a link to .*let the directory as a whole be a link"):
                use()
        (run / name).unlink()
        run.rmdir()
    (run / "exports").mkdir(parents=True)
    (run / "exports" / ".step-1.x").symlink_to(attack.outside)
    with pytest.raises(InputError, match="is a link to"), workdir.locked(run, "run"):
        pass
    (run / "exports" / ".step-1.x").unlink()
    (run / "wandb").mkdir()
    (run / "wandb" / "latest").symlink_to(run / "exports")  # from place to place in it, as W&B makes them
    (attack.folder / "link").symlink_to(run)
    with workdir.locked(attack.folder / "link", "run"):
        pass


def checkpoints(attack: Attack) -> None:
    path = attack.folder / "3"
    (path / "loop").mkdir(parents=True)
    (path / "loop" / "metadata").write_bytes(_pickle_of(attack))
    assert "cannot be read" in (checkpoint.damage(path) or "")
    for name in (str(attack.outside / "keys"), "../../outside/keys"):
        (path / checksums.SUMS).write_text(f"{'0' * 64}  {name}\n")
        assert checkpoint.damage(path) == f"{checksums.SUMS} names a file outside: {name}"


def curves(attack: Attack) -> None:
    name = "<script>alert(1)</script>"
    shown = wording._environment(escape=True).from_string("{{ name }}").render(name=name)
    assert "<script" not in shown and "&lt;script" in shown
    for name, content in {"bomb": "[" * 100_000 + "\n", "pipe": None, "run": '{"step": 1, "reward": 0.5}\n'}.items():
        run = attack.folder / "runs" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"config": {}, "group_size": 4, "num_steps": 1}))
        for log in ("metrics.jsonl", "fleet.json"):
            os.mkfifo(run / log) if content is None else (run / log).write_text(content)
    watched = WatchedRuns(attack.folder / "runs")  # one that is broken holds up no other
    assert {run["name"]: run["reward"] for run in watched.overview()["runs"]} == {
        "bomb": None,
        "pipe": None,
        "run": 0.5,
    }
    for read in (
        lambda: run_files.read_lines(attack.folder / "runs" / "pipe" / "metrics.jsonl"),
        lambda: run_files.cut_back(attack.folder / "runs" / "bomb" / "metrics.jsonl", step=0),
    ):
        with pytest.raises(InputError, match=r"metrics\.jsonl:"):
            read()
    row = {"run": "=SUM(1)", "more": "@SUM(1)", "compute": -1.0, "text": "n = 4"}
    assert outputs._csv([row]).splitlines()[1] == "'=SUM(1),'@SUM(1),-1.0,n = 4"


def sweeps(attack: Attack) -> None:
    root = attack.folder / "sweep"
    ours = PlannedRun("n=4", RunConfig(model="m", train_set="t"))
    books.prepare([ours], root)
    theirs = {"config": {"reward": {"function": "evil:grade"}}}
    (root / "configs" / "n=4.json").write_text(json.dumps(theirs))
    books.prepare([ours], root)
    written = json.loads((root / "configs" / "n=4.json").read_text())
    assert from_dict(written["config"]) == ours.config
    for folder in (".compile_cache", "compile-cache"):
        (root / folder).mkdir()
    place = run_files.user_cache("train")  # of compiled programs, which are code
    assert place is not None and root not in place.parents


def curations(attack: Attack) -> None:
    out = attack.folder / "curated"
    out.mkdir()
    (out / "completions").symlink_to(attack.outside)
    with pytest.raises(InputError, match="completions is a link to"), workdir.locked(out, "curation"):
        pass


def numbers(attack: Attack) -> None:
    path = attack.folder / "forecast.json"
    for content in (_pickle_of(attack), json.dumps({"question": {"group_sizes": [attack.code]}}).encode(), b"[]"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is no forecast"):
            read_forecast(path)
    path = attack.folder / "rates.csv"
    path.write_text(f'id,avg@16\n1,"{attack.code}"\n')
    with pytest.raises(InputError, match=r"rates\.csv:2"):
        read_pass_rates(path)


def endpoints(attack: Attack) -> None:
    path = attack.folder / "endpoints"
    path.write_text("127.0.0.1:9\n")
    assert EndpointsFile(str(path)).read() == ("127.0.0.1:9",)  # it commands, and only a config or a flag names it
    path.write_text(f"127.0.0.1:9\n$({attack.code})\n")
    with pytest.raises(InputError, match="endpoints:2"):
        EndpointsFile(str(path)).read()


def config_files(attack: Attack) -> None:
    """The one that is code: it is run, as the page says."""
    path = attack.folder / "mine.py"
    path.write_text(
        textwrap.dedent(f"""
        from isocompute_jax.experiment.config import RunConfig
        open({str(attack.folder / "ran")!r}, "w")
        def get_config():
            return RunConfig()
        """)
    )
    done = mains.run("isocompute_jax.train", [f"--config={path}", f"--workdir={attack.folder / 'run'}"])
    assert done.returncode == 2 and (attack.folder / "ran").exists()


CASES: dict[str, Callable[[Attack], None]] = {
    "problems": problems,
    "answers of a model": answers,
    "a model's directory": models,
    "`config.json` of another run (`--resolved_config`)": configs,
    "a run directory that is continued or exported": run_directories,
    "checkpoints": checkpoints,
    "curves: tables, and run directories that are watched or fitted": curves,
    "a sweep's or a study's directory": sweeps,
    "a curation's directory": curations,
    "forecasts, pass rates": numbers,
    "an endpoints file, a token file": endpoints,
    "config files (`.py`), a JobSet's YAML, modules of rewards": config_files,
}
"""First cell of a row of the page -> what tries it."""


def test_the_page_has_a_row_for_each_case_and_a_case_for_each_row():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [re.split(r" \| ", row.strip("| "))[0] for row in rows[2:]] == list(CASES)
    assert all(row.count(" | ") == 3 for row in rows)


@pytest.mark.parametrize("kind", CASES)
def test_a_file_of_this_kind_commands_nothing(kind, tmp_path, monkeypatch):
    attack = Attack(tmp_path)
    monkeypatch.chdir(attack.folder)  # where Python looks for modules
    CASES[kind](attack)
    assert attack.held


def _main(name: str, *flags: str) -> None:
    """Runs a main; raises what it said, where that is bad input."""
    done = mains.run(f"isocompute_jax.{name}", list(flags))
    if done.returncode == 2:
        raise InputError(done.stderr)
    raise AssertionError(f"exit code {done.returncode}: {done.stderr}")


def _pickle_of(attack: Attack) -> bytes:
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {attack.ran}",)

    return pickle.dumps(Evil())
