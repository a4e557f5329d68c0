"""How large the package is and how finely it is cut. A bar is moved by an argument in the commit that moves it."""

import ast
import collections
import functools
import pathlib
import statistics

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "isocompute_jax"
RECORDS = {"NamedTuple", "TypedDict", "PyTreeNode"}
FILES = sorted(file for file in PACKAGE.rglob("*.py") if "_pb2" not in file.name)
LINES = {file: file.read_text(encoding="utf-8").count("\n") for file in FILES}


@functools.cache
def trees() -> dict[pathlib.Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}


def classes() -> list[tuple[pathlib.Path, ast.ClassDef]]:
    return [(file, node) for file, tree in trees().items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def is_record(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases}
    return bool(bases & RECORDS) or any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def importers() -> dict[pathlib.Path, set[pathlib.Path]]:
    """Module -> the package's modules that import it, or a name of it."""
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
    found: dict[pathlib.Path, set[pathlib.Path]] = collections.defaultdict(set)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in names]
            else:
                continue
            for name in names:
                if name in modules and modules[name] != file:
                    found[modules[name]].add(file)
    return found


def lines_of(folder: pathlib.Path, suffix: str = ".py") -> int:
    files = [file for file in folder.rglob(f"*{suffix}") if "_pb2" not in file.name]
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


@pytest.mark.parametrize(
    ("folder", "bar"),
    [("isocompute_jax", 65_280), ("isocompute_jax/fit", 10_810), ("tests", 58_550), ("benchmarks", 9_590)],
)
def test_lines(folder, bar):
    assert lines_of(ROOT / folder) <= bar


def test_files_have_one_subject_of_some_size():
    modules = [file for file in FILES if file.name not in ("__init__.py", "__main__.py")]
    assert len(FILES) <= 345
    assert sum(file.is_relative_to(PACKAGE / "fit") for file in FILES) <= 61
    assert statistics.median(LINES[file] for file in modules) >= 195
    used_by = importers()
    thin = [file for file in modules if LINES[file] < 60 and len(used_by[file]) == 1]
    assert [str(file.relative_to(ROOT)) for file in thin[3:]] == []


def test_record_types():
    records = [file for file, node in classes() if is_record(node)]
    assert len(records) <= 275
    assert sum(file.is_relative_to(PACKAGE / "fit") for file in records) <= 50


def test_one_class_has_one_name():
    names = collections.Counter(node.name for _, node in classes() if not node.name.startswith("_"))
    assert [name for name, times in names.items() if times > 1] == []


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
