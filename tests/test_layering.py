"""The order of the rooms: who may import whom, read from the source, and what an import may cost."""

import ast
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

PACKAGE = "isocompute_jax"
ROOT = pathlib.Path(__file__).parent.parent / PACKAGE

_BASE = {"records", "options"}
_ARRAYS = _BASE | {"devices", "sharding", "model", "tasks"}
_TRAINING = _ARRAYS | {"accelerators", "drivers", "distributed", "sampling", "learner", "service", "environments"}
_TRAINING |= {"experiment"}
_TRAINING |= {"allocation"}

MAY_IMPORT: dict[str, set[str]] = {
    "records": set(),
    "allocation": _BASE | {"app"},  # it must work without the training rooms, and without JAX
    "options": _BASE,
    "app": _BASE | {"accelerators", "command_line"},  # how every main starts and ends
    "command_line": _BASE,
    "__main__": _BASE,
    "sharding": set(),
    "distributed": _BASE,
    "accelerators": _BASE,
    "devices": set(),
    "drivers": _BASE,
    "compiling": _BASE,
    "model": _BASE | {"sharding"},
    "tasks": _BASE,
    "sampling": _ARRAYS,
    "environments": _BASE | {"tasks", "sampling"},
    "learner": _ARRAYS,
    "service": _ARRAYS | {"options", "compiling", "drivers", "distributed", "sampling", "learner"},
    "experiment": _TRAINING - {"experiment"} | {"compiling", "theory"},
    "plan": _ARRAYS | {"accelerators", "allocation", "app", "sampling", "learner", "experiment"},
    "fit": _BASE | {"app", "compiling"},  # it must work without the training rooms
    "theory": _BASE | {"app", "allocation"},  # likewise
    "pilot": _TRAINING | {"app", "compiling", "theory"},  # it trains, a little
    "sweeps": _TRAINING | {"fit", "plan"},  # which runs can still matter, what they cost
    "study": _TRAINING | {"sweeps", "app", "compiling", "fit", "theory"},
    "ablation": _TRAINING | {"sweeps", "fit"},
    "watching": _BASE,  # run directories are all that it knows: it must work, and start, without the training rooms
    # The mains: flags, then one call into a room.
    "train": _TRAINING | {"app", "compiling", "plan"},
    "sweep": _TRAINING | {"sweeps", "app"},
    "ablate": _TRAINING | {"sweeps", "fit", "ablation", "app"},
    "curate": _TRAINING | {"app", "compiling"},
    "check": _TRAINING | {"app", "compiling", "pilot"},
    "evaluate": _TRAINING | {"app", "compiling", "curate"},
    "serve": _TRAINING | {"app", "compiling"},
    "health": _BASE | {"app", "service"},
    "watch": _BASE | {"app", "watching"},
    "make_model": _ARRAYS | {"app"},
    "export": _TRAINING | {"app"},
    "convert": _BASE | {"app", "tasks"},
    "environment": _BASE | {"app", "tasks", "environments"},
    "split": _BASE | {"app", "tasks"},
}
MAINS = {
    "train",
    "sweep",
    "watch",
    "ablate",
    "curate",
    "check",
    "serve",
    "health",
    "make_model",
    "export",
    "convert",
    "environment",
    "evaluate",
    "split",
}
ENGINE_OF_VLLM = "service/server/engines/vllm"  # a module or a folder: the one place that imports vllm, and its torch

# Within the service: the protocol knows neither side, and the sides do not know each other.
SERVICE_MAY_IMPORT = {
    "proto": set(),
    "weights": {"proto"},
    "client": {"proto", "weights"},
    "server": {"proto", "weights"},
}
# A server runs where JAX is not installed; one engine needs it.
WITHOUT_JAX = ("service/proto", "service/weights", "service/server")
ENGINE_OF_JAX = "service/server/engines/jax_engine.py"
OF_JAX = {"jax", "jaxlib", "flax", "optax"} | {
    f"{PACKAGE}.{room}" for room in ("model", "sharding", "devices", "sampling", "learner")
}


def imported_modules(path: pathlib.Path, root: pathlib.Path):
    """(line, dotted module) of every import in a file: inside functions, type-only and by importlib too."""
    parent = [root.name, *path.relative_to(root).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                anchor = parent[: len(parent) - node.level + 1] if node.level else []
                module = ".".join(anchor + ([node.module] if node.module else []))
                # `from isocompute_jax import fit` imports a room; `from isocompute_jax import __version__` none.
                names = [f".{alias.name}" for alias in node.names] if module == root.name else [""]
                yield from ((node.lineno, module + name) for name in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module


def violations(root: pathlib.Path) -> list[str]:
    """Every import that breaks the order of the rooms, as `file:line: what is wrong`."""
    found = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        room = inside.parts[0].removesuffix(".py")
        if room != "__init__" and room not in MAY_IMPORT:
            found.append(f"{inside}: room {room!r} has no place in MAY_IMPORT")
            continue
        for line, module in imported_modules(path, root):
            top, _, rest = module.partition(".")
            target = rest.split(".")[0]
            if top == "torch" and not str(inside).startswith(ENGINE_OF_VLLM):
                found.append(f"{inside}:{line}: the package never imports torch")
            elif top == "vllm" and not str(inside).startswith(ENGINE_OF_VLLM):
                found.append(f"{inside}:{line}: only {ENGINE_OF_VLLM} imports vllm")
            elif top == root.name and target in MAY_IMPORT.keys() - MAY_IMPORT.get(room, set()) - {room}:
                found.append(f"{inside}:{line}: {room} must not import {target}")
            elif message := _within_service(inside, module):
                found.append(f"{inside}:{line}: {message}")
    return found


def _within_service(inside: pathlib.Path, module: str) -> str:
    """What is wrong with an import of a file of the service; empty for nothing."""
    if inside.parts[0] != "service" or len(inside.parts) < 3:
        return ""
    room, parts = inside.parts[1], module.split(".")
    without_jax = str(inside).startswith(WITHOUT_JAX) and str(inside) != ENGINE_OF_JAX
    if without_jax and (parts[0] in OF_JAX or ".".join(parts[:2]) in OF_JAX):
        return f"service/{room} runs without JAX"
    if parts[:2] == [PACKAGE, "service"] and parts[2] in SERVICE_MAY_IMPORT.keys() - SERVICE_MAY_IMPORT[room] - {room}:
        return f"service/{room} must not import service/{parts[2]}"
    return ""


def test_rooms_import_only_earlier_rooms():
    assert violations(ROOT) == []


def test_the_order_names_exactly_the_rooms_that_exist():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert set(MAY_IMPORT) == packages | modules
    assert set().union(*MAY_IMPORT.values()) <= set(MAY_IMPORT)


def test_the_order_itself():
    order = ["records", "sharding", "model", "tasks", "sampling", "learner", "service", "experiment", "sweeps", "study"]
    for place, room in enumerate(order):
        assert MAY_IMPORT[room] & set(order) <= set(order[:place])
    assert "sampling" not in MAY_IMPORT["learner"] and "learner" not in MAY_IMPORT["sampling"]
    assert MAY_IMPORT["fit"] == {"records", "options", "app", "compiling"}
    users = {room for room in MAY_IMPORT if "fit" in MAY_IMPORT[room]}
    assert users == {"sweeps", "study", "ablation", "ablate"}


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("learner/step.py", "import isocompute_jax.sampling.in_process", "learner must not import sampling"),
        ("sampling/in_process.py", "from isocompute_jax.learner import losses", "sampling must not import learner"),
        ("records/rollout.py", "def f():\n    from isocompute_jax import model", "records must not import model"),
        ("fit/load.py", "from ..experiment import config", "fit must not import experiment"),
        ("fit/plots/bars.py", "from ...model import config", "fit must not import model"),
        ("experiment/loop.py", "from isocompute_jax import study", "experiment must not import study"),
        ("model/layers.py", "import importlib\nimportlib.import_module('isocompute_jax.fit')", "must not import fit"),
        ("tasks/math.py", "try:\n    import torch.nn\nexcept ImportError: ...", "never imports torch"),
        ("service/client/fleet.py", "from vllm import LLM", "only service/server/engines/vllm imports vllm"),
        ("service/server/servicer.py", "import jax.numpy", "runs without JAX"),
        ("service/weights/outbox.py", "from isocompute_jax.model import Params", "runs without JAX"),
        (
            "service/client/fleet.py",
            "from isocompute_jax.service.server import servicer",
            "must not import service/server",
        ),
        (
            "service/proto/convert.py",
            "from isocompute_jax.service.client import fleet",
            "must not import service/client",
        ),
        ("__init__.py", "from isocompute_jax.records import metrics", "__init__ must not import records"),
        ("utils.py", "", "room 'utils' has no place"),
    ],
)
def test_a_bad_import_is_found(tmp_path, file, source, message):
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    [found] = violations(tmp_path / PACKAGE)
    assert found.startswith(file) and message in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("learner/step.py", "from isocompute_jax import __version__, sharding\nfrom . import losses"),
        ("experiment/loop.py", "from isocompute_jax.learner import step\nfrom ..sampling import protocol"),
        ("service/server/engines/vllm.py", "import vllm"),
        (
            "service/server/engines/vllm/launch.py",
            "import vllm\nfrom isocompute_jax.service.proto import convert",
        ),
        ("service/server/engines/jax_engine.py", "import jax\nfrom isocompute_jax import model"),
        ("service/client/fleet.py", "from isocompute_jax.model import Params"),
        ("study/__init__.py", "from isocompute_jax import experiment, fit"),
    ],
)
def test_a_good_import_is_let_through(tmp_path, file, source):
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path / PACKAGE) == []


def run_python(source: str, **env: str) -> None:
    """Runs a program in a fresh interpreter; its error output is the failure message."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)]
    done = subprocess.run(command, env=os.environ | env, cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "heavy"),
    [(PACKAGE, "jax numpy flax transformers"), (f"{PACKAGE}.records", "jax flax transformers matplotlib pyarrow")],
)
def test_import_is_light(module, heavy):
    run_python(f"import {module}, sys\nloaded = set({heavy.split()}) & set(sys.modules)\nassert not loaded, loaded")


def importable_modules() -> list[str]:
    """Every module of the package but the mains and the engine that needs vllm."""
    modules = []
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT)
        parts = [part for part in inside.with_suffix("").parts if part != "__init__"]
        if parts[:1] and (parts[0] in MAINS or parts[-1] == "__main__" or str(inside).startswith(ENGINE_OF_VLLM)):
            continue
        modules.append(".".join([PACKAGE, *parts]))
    return modules


@pytest.mark.slow
def test_imports_initialise_no_device():
    # On a platform that does not exist, whatever asks JAX for a device fails; the last lines prove that it does.
    run_python(
        f"""
        import importlib, jax
        for name in {importable_modules()}:
            importlib.import_module(name)
        try:
            jax.devices()
        except RuntimeError:
            pass
        else:
            raise AssertionError("this platform was meant not to exist")
        """,
        JAX_PLATFORMS="no_such_platform",
    )
