"""The package as it is installed: its data files, its dependencies and the pinned versions."""

import ast
import functools
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Collection

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import isocompute_jax
from isocompute_jax import app

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "isocompute_jax"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]


def requirements(lines: list[str], python: str = "3.12") -> dict[str, Requirement]:
    """Those that count on a version of Python."""
    found = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate({"python_version": python})]
    return {canonicalize_name(r.name): r for r in found}


def pins(python: str, file: str = "constraints.txt") -> dict[str, Requirement]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    found = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate({"python_version": python})]
    names = [canonicalize_name(r.name) for r in found]
    assert len(names) == len(set(names)), f"pinned twice for Python {python}"
    return dict(zip(names, found, strict=True))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    return path


def test_wheel_holds_every_file_of_the_package(wheel):
    """Templates, style sheets and schemas too, in an installation that is not editable."""
    packed = {
        name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(f"{wheel.name.split('-py3')[0]}.")
    }
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {path.relative_to(ROOT).as_posix() for path in files}


@pytest.mark.slow
def test_sdist_holds_what_its_tests_use(tmp_path):
    """What they import of this project, and every file that they name by its path from the root."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    names = {path.name for path in ROOT.iterdir()} - ignored - {".git", ".venv"}
    missing = set()
    for path in unpacked.rglob("tests/**/*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = path.relative_to(unpacked)
        used = imported_files(tree) | named_files(tree, names)
        missing |= {f"{inside}: {file}" for file in used if (ROOT / file).exists() and not (unpacked / file).exists()}
    assert missing == set()
    assert {path.name for path in (unpacked / "tests").iterdir()} >= {"conftest.py", "learner", "fit"}


def imported_files(tree: ast.AST) -> set[str]:
    """Where each imported module can lie: `tests.model.tiny` is tests/model/tiny or tests/model/tiny.py."""
    modules = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                modules |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                modules |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return {name.replace(".", "/") + end for name in modules for end in ("", ".py")}


def named_files(tree: ast.AST, names: set[str]) -> set[str]:
    """String constants that begin with the name of something at the root."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str) and len(text) < 200 and text.split("/")[0] in names}


def test_every_room_is_a_package():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@functools.cache
def top_level_imports(path: pathlib.Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


BASE = {"absl-py", "jax", "jinja2", "matplotlib", "numpy", "pyarrow", "rich", "scipy"}
"""What an installation without extras brings: all that the fit needs."""

OF_THE_FIT = {"__init__.py", "app.py", "options.py", "records", "fit"}


def test_wheel_alone_requires_what_the_fit_needs(wheel):
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        lines = packed.read(name).decode().splitlines()
    found = [Requirement(line.removeprefix("Requires-Dist: ")) for line in lines if line.startswith("Requires-Dist: ")]
    assert {r.name for r in found if r.marker is None} == BASE
    assert {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra: ")} == {*EXTRAS}
    for extra in ("train", "serve"):
        with_it = {canonicalize_name(r.name) for r in found if r.marker and r.marker.evaluate({"extra": extra})}
        assert with_it == set(requirements(EXTRAS[extra]))


distributions = functools.cache(importlib.metadata.packages_distributions)


def test_every_module_of_an_extra_is_known_by_its_extra():
    """So that a command without it can name it."""
    for name in set().union(*(top_level_imports(path) for path in PACKAGE.rglob("*.py"))):
        owners = {canonicalize_name(owner) for owner in distributions().get(name, ())}
        for extra, modules in app.EXTRAS.items():
            assert (name in modules) == bool(owners & set(requirements(EXTRAS[extra]))), (name, extra)


BLOCKED = """
import runpy, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def without(blocked: Collection[str], source: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs Python where some modules are not installed."""
    command = [sys.executable, "-c", BLOCKED.format(blocked=set(blocked)) + source]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=env)


def importing(rooms: Collection[str]) -> str:
    """A program that imports every module of some rooms."""
    paths = [path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py")) if path.name != "__main__.py"]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return f"import importlib\nfor name in {modules}: importlib.import_module(name)\n"


@pytest.mark.slow
def test_the_fit_works_without_the_extras(tmp_path):
    """From a table to report.html, every module of the fit imported."""
    rows = [
        f"{n},8,{seed},{compute},{0.1 + 0.6 / (1 + 1e4 * n / compute) + 1e-3 * seed}"
        for n in (4, 16)
        for seed in (0, 1)
        for compute in (2e3, 8e3, 3e4, 1e5, 4e5, 1e6)
    ]
    (tmp_path / "curves.csv").write_text("\n".join(["group_size,problems_per_batch,seed,compute,avg@4", *rows]))
    source = importing(["fit"]) + "sys.argv = ['fit', '--runs=curves.csv', '--out=out']\n"
    source += "runpy.run_module('isocompute_jax.fit', run_name='__main__', alter_sys=True)"
    done = without((*app.EXTRAS["train"], *app.EXTRAS["serve"], "torch"), source, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_the_learner_works_without_the_service(tmp_path):
    rooms = ["model", "tasks", "sampling", "learner", "experiment", "sweeps", "study"]
    blocked = {*app.EXTRAS["serve"]} - {"google"}  # which orbax needs too
    done = without(blocked, importing(rooms), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("train --config={root}/configs/arithmetic_hard.py --workdir=run", "train", "train"),
        ("train --config={root}/configs/arithmetic_hard.py --workdir=run", "flax", "train"),
        ("serve --engine=jax --model=base", "serve", "serve"),
        ("serve --engine=jax --model=base", "train", "train,serve"),
        *(
            pytest.param(command, "train", "train", marks=pytest.mark.slow)
            for command in (
                "sweep --config={root}/configs/arithmetic_hard.py --workdir=runs --grid=seed=0,1",
                "curate --model=base --problems=problems.jsonl --out=curated",
                "study --preset=smoke --workdir=study",
            )
        ),
    ],
)
def test_a_command_names_the_extra_that_it_misses(tmp_path, command, missing, extra):
    name, *arguments = command.format(root=ROOT).split()
    source = f"sys.argv = {[name, *arguments]}\n"
    source += f"runpy.run_module('isocompute_jax.{name}', run_name='__main__', alter_sys=True)"
    done = without(app.EXTRAS.get(missing, [missing]), source, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and f"pip install 'isocompute-jax[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == []


def test_imports_are_declared():
    """What the package imports is a dependency of its own, not one of a dependency; what the fit does, no extra's."""
    declared = set(requirements(PYPROJECT["project"]["dependencies"]))
    training = declared | set(requirements(EXTRAS["train"] + EXTRAS["serve"]))
    optional = {
        "service": set(requirements(EXTRAS["vllm"])),
        "model": set(requirements(EXTRAS["tokamax"])),
        "tasks": set(requirements(EXTRAS["gym"])),
        "environments": set(requirements(EXTRAS["verifiers"])),
        "experiment": set(requirements(EXTRAS["track"] + EXTRAS["wandb"])),
        "sweeps": set(requirements(EXTRAS["slurm"] + EXTRAS["kubernetes"])),
    }
    missing = []
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        room = inside.parts[0]
        allowed = declared if room in OF_THE_FIT else training | optional.get(room, set())
        for name in top_level_imports(path):
            owners = {canonicalize_name(owner) for owner in distributions().get(name, [name])}
            if name not in sys.stdlib_module_names and name != PACKAGE.name and not owners & allowed:
                missing.append(f"{inside}: {name}")
    assert not missing


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_constraints_pin_what_is_required(python):
    pinned = pins(python)
    extras = [line for extra, lines in EXTRAS.items() if extra != "vllm" for line in lines]
    for name, required in requirements(PYPROJECT["project"]["dependencies"] + extras, python).items():
        [pin] = pinned[name].specifier
        assert required.specifier.contains(pin.version), f"{required} against {pinned[name]}"


def test_learners_and_servers_share_nvidias_libraries():
    """So that both ends of NCCL are of one version, and a driver that suits one suits the other."""
    ours, theirs = (
        {name: str(pin.specifier) for name, pin in pins("3.12", file).items() if name.startswith("nvidia-")}
        for file in ("constraints.txt", "constraints-vllm-cuda.txt")
    )
    assert ours and ours.items() <= theirs.items()


def makefile(variable: str) -> str:
    [value] = re.findall(rf"^{variable} :?\??= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return value


def test_pages_install_what_is_compiled_with():
    """Where people are told to install for GPUs or TPUs, it is what `make aot-env` makes, and a scheduler's client."""
    texts = [path.read_text() for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md")]
    texts += [path.read_text() for path in (ROOT / "launch").rglob("*") if path.suffix in (".py", ".sh", ".md")]
    said = [found for text in texts for found in re.findall(r"\bEXTRAS=([\w,]+)|-e ['\"]\.\[([\w,]+)\]", text)]
    extras = [{*(first or second).split(",")} - {"slurm", "kubernetes"} for first, second in said]
    for device, variable in (("cuda", "GPU_EXTRAS"), ("tpu", "TPU_EXTRAS")):
        installed = [names for names in extras if device in names]
        assert installed and all(names == {*makefile(variable).split(",")} for names in installed)
        assert f".[$({variable})]" in (ROOT / "Makefile").read_text()


def test_constraints_are_names_and_versions_only():
    line = re.compile(r'[A-Za-z0-9._-]+==[0-9][0-9a-z.]*(; python_version (<|>=) "3\.12")?')
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [text for text in lines if not line.fullmatch(text)] == []


def test_version_is_in_the_changelog():
    assert re.search(rf"^## .*\b{re.escape(isocompute_jax.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)
