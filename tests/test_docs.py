"""What the pages show: Python blocks are run as they stand there, and shell lines name targets and flags that exist.

A block that begins with ```python is run and must succeed; ```python excerpt marks one that is only read. What a block
prints stands in a ```text block right after it, up to white space, where `...` stands for anything.
"""

import doctest
import itertools
import pathlib
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests import mains

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$(?:\s*^\1```text\n(.*?)^\1```$)?", re.DOTALL | re.MULTILINE)
MAIN = re.compile(r"-m isocompute_jax\.(\w+)$")
STAND_INS = {"{endpoints}": "127.0.0.1:50051", "{token_file}": "token"}
"""For what the launcher or the reader fills in."""
SLURM_RUN, TWO_JOBS = "launch/slurm/run.sh", "launch/slurm/two_jobs.sh"
KNOWN = {
    SLURM_RUN: "this is no SLURM job: submit it with sbatch",
    TWO_JOBS: "flags of launch/slurm/run.sh are missing: give them after --",
    "launch/tpu/run.sh": "gcloud is not installed, or not on PATH",
}
"""What a script says here once it has understood its flags: there is no scheduler, and no PATH."""


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    text: str
    output: str
    """What the page says that it prints."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        for fence in FENCE.finditer(text):
            line = text.count("\n", 0, fence.start()) + 1
            found.append(Block(name, line, fence[2].strip(), fence[3], fence[4] or ""))
    return found


def lines(first: str) -> list[tuple[str, list[str]]]:
    """(`page:line`, its words) of every command in a block that is not Python whose beginning matches `first`."""
    found = []
    for block in blocks():
        if block.kind.startswith("python"):
            continue
        open_line = ""  # a quoted argument may go on in the next line
        for line in block.text.replace("\\\n", " ").splitlines():
            if not open_line and not re.match(rf"\s*(\$ )?({first})", line):
                continue
            open_line += f"{line}\n"
            try:
                words = shlex.split(open_line.strip().removeprefix("$ "), comments=True)
            except ValueError:
                continue
            found.append((str(block), words))
            open_line = ""
        assert not open_line, f"{block}: {open_line}"
    return found


def parts(words: list[str]) -> list[list[str]]:
    """The words of a command, and those after each `--`."""
    ends = [i for i, word in enumerate(words) if word == "--"]
    return [words[a + 1 : b] for a, b in zip([-1, *ends], [*ends, len(words)], strict=True)]


def commands() -> list[tuple[str, list[str]]]:
    """Those of make and Python; what stands after `--` is one more."""
    return [(where, part) for where, words in lines(r"make |[\w./-]*python[\d.]* ") for part in parts(words)]


def launches() -> list[tuple[str, list[str]]]:
    """What `sbatch` starts, and other scripts of launch/: (`page:line`, words); sbatch's own flags are left out.

    `...` stands for the flags of a command that was shown before.
    """
    found = []
    for where, words in lines(r"sbatch |launch/[\w/]+\.sh "):
        if words[0] == "sbatch":
            words = list(itertools.dropwhile(lambda word: word.startswith("-"), words[1:]))
        if words[0] == TWO_JOBS:  # what follows are flags of the other script
            cut = words.index("--")
            words, jobs = words[:cut], [SLURM_RUN, *words[cut + 1 :]]
            found += [(where, jobs)] if jobs[1:] != ["..."] else []
        found.append((where, words))
    for where, words in lines(r"[\w./-]*python[\d.]* "):
        flags = [word.removeprefix("--slurm_run=") for word in words if word.startswith("--slurm_run=")]
        found += [(where, [SLURM_RUN, "--workdir=DIR", "--model=DIR", *shlex.split(text)]) for text in flags]
    return found


def filled_in(word: str) -> str:
    for name, value in STAND_INS.items():
        word = word.replace(name, value)
    return word


SCRIPTS = [block for block in blocks() if block.kind == "python"]
MAKE = [(where, words) for where, words in commands() if words[0] == "make"]
PYTHON = [(where, words) for where, words in commands() if words[0] != "make"]


@pytest.mark.slow
@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_script_runs(block, tmp_path):
    """In a process of its own, away from the checkout, of which it sees the gallery: no flags, warnings are errors."""
    (tmp_path / "gallery").symlink_to(ROOT / "gallery")
    program = f"import warnings; warnings.simplefilter('error')\n{block.text}"
    done = mains.run("-c", [program], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gallery"]
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(block.output, done.stdout, options), done.stdout


def test_python_blocks_say_whether_they_run():
    kinds = {block.kind for block in blocks() if block.kind.startswith("py")}
    assert kinds <= {"python", "python excerpt"}


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [(page.name, name) for page in PAGES for name in re.findall(r"`make ([a-z0-9-]+)", page.read_text())]
    named += [(where, word) for where, words in MAKE for word in words[1:] if "=" not in word]
    assert [(where, name) for where, name in named if name not in targets] == []


@pytest.mark.parametrize(("where", "words"), PYTHON, ids=lambda value: value if isinstance(value, str) else "")
def test_python_commands_have_flags_that_exist(where, words):
    """A main of the package parses the line; of any other script the file or the module exists and knows the flags."""
    arguments = [filled_in(word) for word in words[1:]]
    if main := MAIN.match(" ".join(arguments[:2])):
        done = mains.run(arguments[1], [*arguments[2:], "--only_check_args"])  # absl's flag: parse, and end
        assert (main[1], done.returncode, done.stderr) == (main[1], 0, "")
        return
    path = arguments[1].replace(".", "/") + ".py" if arguments[0] == "-m" else arguments[0]
    files = [file for file in (ROOT / path, ROOT / path.removesuffix(".py") / "__main__.py") if file.exists()]
    assert files, path
    source = files[0].read_text(encoding="utf-8")
    if "absl_app.run" in source:  # flags that are made from a dataclass stand nowhere in it
        command = [sys.executable, str(files[0]), *arguments[1:], "--only_check_args"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (path, done.returncode, done.stderr) == (path, 0, "")
        return
    flags = [word[2:].split("=")[0] for word in arguments if word.startswith("--")]
    assert [flag for flag in flags if not re.search(rf"[\"'](--)?{flag}[\"']", source)] == []


@pytest.mark.parametrize(("where", "words"), launches(), ids=lambda value: value if isinstance(value, str) else "")
def test_launch_commands_have_flags_that_exist(where, words, tmp_path):
    """The script itself reads those before `--`, and the trainer those after."""
    (own, *rest), script = parts(words[1:]), words[0]
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    done = subprocess.run(
        ["/bin/bash", ROOT / script, *own], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"error: {KNOWN[script]}")
    if rest:
        done = mains.run("isocompute_jax.train", ["--workdir=DIR", *rest[0], "--only_check_args"])
        assert (done.returncode, done.stderr) == (0, "")


def test_links_lead_somewhere():
    """Relative links name files that exist, and their anchors a heading there."""
    broken = []
    for page in PAGES:
        prose = FENCE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def anchors(page: pathlib.Path) -> set[str]:
    """Those that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_config_page_is_what_the_options_say():
    """Written by `python -m isocompute_jax.train --config_fields > docs/config.md`."""
    from isocompute_jax.experiment.config import RunConfig, config_page

    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == config_page(RunConfig)


def test_the_method_page_names_modules_and_fields_that_exist():
    """Of every method: where it is, and what turns it on."""
    from isocompute_jax.experiment.config import RunConfig

    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    modules = re.findall(r"`([\w/]+\.py)`", text)
    assert modules and [name for name in modules if not (ROOT / "isocompute_jax" / name).exists()] == []
    fields = [field.rstrip(".").split(".") for field in re.findall(r"`config\.([\w.]+)", text)]
    assert fields
    for path in fields:
        found = RunConfig()
        for name in path:
            assert hasattr(found, name), ".".join(path)
            found = getattr(found, name)
