"""The package as it is installed: its data files, its dependencies and the pinned versions."""

import ast
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import isocompute_jax

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "isocompute_jax"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]


def requirements(lines: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def pins(python: str) -> dict[str, Requirement]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    found = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate({"python_version": python})]
    names = [canonicalize_name(r.name) for r in found]
    assert len(names) == len(set(names)), f"pinned twice for Python {python}"
    return dict(zip(names, found, strict=True))


def test_wheel_holds_every_file_of_the_package(tmp_path):
    """Templates, style sheets and schemas too, in an installation that is not editable."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = {
        name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(f"{wheel.name.split('-py3')[0]}.")
    }
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {path.relative_to(ROOT).as_posix() for path in files}


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


def top_level_imports(path: pathlib.Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_imports_are_declared():
    """What the package imports is a dependency of its own, not one of a dependency."""
    distributions = importlib.metadata.packages_distributions()
    declared = set(requirements(PYPROJECT["project"]["dependencies"]))
    optional = set(requirements(EXTRAS["vllm"]))
    missing = []
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        allowed = declared | optional if inside.parts[0] == "service" else declared
        for name in top_level_imports(path):
            owners = {canonicalize_name(owner) for owner in distributions.get(name, [name])}
            if name not in sys.stdlib_module_names and name != PACKAGE.name and not owners & allowed:
                missing.append(f"{inside}: {name}")
    assert not missing


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_constraints_pin_what_is_required(python):
    pinned = pins(python)
    for name, required in requirements(PYPROJECT["project"]["dependencies"] + EXTRAS["dev"]).items():
        [pin] = pinned[name].specifier
        assert required.specifier.contains(pin.version), f"{required} against {pinned[name]}"


def test_constraints_are_names_and_versions_only():
    line = re.compile(r'[A-Za-z0-9._-]+==[0-9][0-9a-z.]*(; python_version (<|>=) "3\.12")?')
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [text for text in lines if not line.fullmatch(text)] == []


def test_version_is_in_the_changelog():
    assert re.search(rf"^## .*\b{re.escape(isocompute_jax.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)
