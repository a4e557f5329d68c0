"""Who gets which GPU: the plan, then real processes that say what they see, beside a stand-in of nvidia-smi."""

import os
import pathlib
import subprocess
import sys

import pytest

from isocompute_jax.records.errors import InputError
from launch import gpus
from tests.launch import processes

REHEARSAL = processes.ROOT / "launch" / "rehearsal"
UUID = "GPU-00000000-0000-4000-8000-00000000000"
MIG = "  MIG 1g.18gb     Device  0: (UUID: MIG-aaaa-1)"
LISTING = "\n".join(f"GPU {i}: NVIDIA H200 (UUID: {UUID}{i})" for i in range(4)) + f"\n{MIG}\n"
HOST = gpus.parse(LISTING)
SEES = 'echo "$CUDA_VISIBLE_DEVICES|$CUDA_DEVICE_ORDER|$XLA_PYTHON_CLIENT_MEM_FRACTION|$JAX_PLATFORMS"'
SERVER = f"""#!/bin/sh
for flag in "$@"; do case "$flag" in --port_file=*) port_file=${{flag#*=}};; esac; done
{{ {SEES}; echo "$*"; }} > "$SEEN/$(basename "$port_file")"
: > "$port_file"
exec sleep 600
"""


def divide(count: int, **asked) -> gpus.Shares:
    return gpus.divide(gpus.Pool(tuple(map(str, range(count))), f"this host has {count}"), **asked)


def test_a_listing_is_read():
    assert [gpu.index for gpu in HOST] == [0, 1, 2, 3, None]
    assert (HOST[3].name, HOST[3].uuid, HOST[4].uuid) == ("NVIDIA H200", f"{UUID}3", "MIG-aaaa-1")


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, "0,1,2,3"), ("", ""), ("2, 0", "2,0"), ("3,-1,0", "3"),
        (f"{UUID}1,MIG-a", f"{UUID}1,MIG-aaaa-1"),  # a unique beginning, in full
    ],
)  # fmt: skip
def test_what_may_be_given_out(visible, devices):
    assert ",".join(gpus.pool(HOST, visible).devices) == devices


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        ("0,4", "CUDA_VISIBLE_DEVICES=0,4: '4' is none of this host's 4 GPUs (nvidia-smi -L)"),
        ("GPU-0", "'GPU-0' is the beginning of several of this host's 4 GPUs"),
        (f"1,{UUID}1", f"names {UUID}1 twice"),
    ],
)
def test_what_the_host_has_not_is_refused(visible, message):
    with pytest.raises(InputError) as error:
        gpus.pool(HOST, visible)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("count", "asked", "learners", "servers", "unused"),
    [
        (8, (1, 4, 4, 1), ["0,1,2,3"], ["4", "5", "6", "7"], ""),
        (8, (2, 4, 1, 2), ["0,1", "2,3"], ["4,5"], "6,7"),
        (2, (1, 0, 2, 1), [""], ["0", "1"], ""),
        (4, (1, 4, 0, 0), ["0,1,2,3"], [], ""),
        (0, (1, 0, 2, 0), [""], ["", ""], ""),
    ],
)
def test_learners_come_first_then_servers_in_order(count, asked, learners, servers, unused):
    names = ("learners", "learner_gpus", "servers", "server_gpus")
    shares = divide(count, **dict(zip(names, asked, strict=True)))
    assert [",".join(share.devices) for share in shares.learners] == learners
    assert [",".join(share.devices) for share in shares.servers] == servers
    assert ",".join(shares.unused) == unused and not shares.common


@pytest.mark.parametrize(
    ("count", "asked", "message"),
    [
        (8, (1, 4, 5, 1), "--learner_gpus=4 and --servers=5 of --server_gpus=1 are 9 GPUs, and this host has 8: lower"),
        (1, (1, 1, 2, 1), "and this host has 1: one GPU is shared by one learner and one server, --learner_gpus=1 --s"),
        (8, (2, 3, 0, 0), "--learner_gpus=3 is no even share for --learners=2"),
    ],
)
def test_more_than_there_is_is_refused(count, asked, message):
    names = ("learners", "learner_gpus", "servers", "server_gpus")
    with pytest.raises(InputError) as error:
        divide(count, **dict(zip(names, asked, strict=True)))
    assert message in str(error.value)


ONE = divide(1, learners=1, learner_gpus=1, servers=1, server_gpus=1)


@pytest.mark.parametrize(
    ("engine", "arguments", "environ", "learner", "server", "added"),
    [
        ("vllm", [], {}, 0.6, 0.3, ["--gpu_memory_utilization=0.3"]),
        (
            "vllm",
            ["--gpu_memory_utilization", "0.25"],
            {"XLA_CLIENT_MEM_FRACTION": ".7"},
            0.7,
            0.25,
            [],
        ),  # exactly what there is,
        ("vllm", ["--kv_cache_bytes=1000"], {}, 0.6, None, []),
        ("jax", [], {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, 0.5, 0.3, []),
    ],
)
def test_one_gpu_is_shared(engine, arguments, environ, learner, server, added):
    assert ONE.common
    shares, flags = gpus.settle(ONE, engine=engine, arguments=arguments, environ=environ)
    assert (shares.learners[0].memory, shares.servers[0].memory, flags) == (learner, server, added)
    own = shares.learners[0].environment(environ)
    assert own["XLA_PYTHON_CLIENT_MEM_FRACTION"] == f"{learner:g}" and "XLA_CLIENT_MEM_FRACTION" not in own
    if server is None:
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in shares.servers[0].environment({})


def test_shares_of_a_gpu_that_exceed_it_are_refused():
    with pytest.raises(InputError, match=r"0\.6 \(XLA_PYTHON_CLIENT_MEM_FRACTION\) and 0\.5 .*more than 0\.95"):
        gpus.settle(ONE, engine="vllm", arguments=["--gpu_memory_utilization=0.5"], environ={})
    apart = divide(2, learners=1, learner_gpus=1, servers=1, server_gpus=1)
    assert gpus.settle(apart, engine="vllm", arguments=[], environ={}) == (apart, [])


def test_a_server_uses_what_it_is_given():
    gpus.check_parts("vllm", 4, ["--tensor_parallel=2", "--data_parallel=2"])
    gpus.check_parts("jax", 2, ["--mesh_tensor=2"])
    with pytest.raises(InputError, match=r"--server_gpus=2, and by --server_args each server uses 1: .*_parallel=2"):
        gpus.check_parts("vllm", 2, [])
    with pytest.raises(InputError, match=r"--tensor_parallel=two: must be a number"):
        gpus.check_parts("vllm", 2, ["--tensor_parallel=two"])


class Launch:
    """The launcher on a host of rehearsed GPUs: servers write down what they see, and so does the learner."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        server = folder / "python"
        server.write_text(SERVER)
        server.chmod(0o755)

    def __call__(self, count: int, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")}
        path = f"{REHEARSAL}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "REHEARSED_GPUS": str(count), "SEEN": str(self.folder)}
        fixed = ("--model=m", f"--server_python={self.folder / 'python'}", f"--logs={self.folder / 'logs'}")
        command = [sys.executable, str(processes.ROOT / "launch" / "local.py"), *fixed, *flags, "--", "/bin/sh", "-c"]
        # Of several learners each is told its place by flags, which the shell takes for $0 and so on.
        command.append(f'{SEES} > "$SEEN/learner-${{2#*=}}"')
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=inherited | own | environ
        )

    def saw(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()


@pytest.fixture
def launch(tmp_path) -> Launch:
    return Launch(tmp_path)


def test_each_process_sees_its_own(launch):
    done = launch(8, "--engine=vllm", "--learner_gpus=4", "--servers=3", "--server_gpus=1")
    assert done.returncode == 0, done.stderr
    said = "learner 0: GPU 0, 1, 2, 3; server 0: GPU 4; server 1: GPU 5; server 2: GPU 6; unused: 7"
    assert f"who sees which GPUs (CUDA_VISIBLE_DEVICES): {said}" in done.stderr
    assert launch.saw("learner-") == ["0,1,2,3|PCI_BUS_ID||"]
    assert [launch.saw(f"server-{i}")[0] for i in range(3)] == [f"{i}|PCI_BUS_ID||" for i in (4, 5, 6)]
    assert "gpu_memory" not in launch.saw("server-0")[1]


def test_several_learners_share_theirs_and_uuids_are_a_pool(launch):
    pool = f"{UUID}3,{UUID}1"
    done = launch(4, "--learners=2", "--learner_gpus=2", "--servers=0", CUDA_VISIBLE_DEVICES=pool)
    assert done.returncode == 0, done.stderr
    assert [launch.saw(f"learner-{i}") for i in range(2)] == [[f"{UUID}{i}|PCI_BUS_ID||"] for i in (3, 1)]


def test_one_gpu_is_shared_by_stated_fractions(launch):
    done = launch(1, "--engine=vllm", "--learner_gpus=1", "--servers=1", "--server_gpus=1")
    assert done.returncode == 0, done.stderr
    assert "learner 0: GPU 0 (0.6 of its memory); server 0: GPU 0 (0.3 of its memory)" in done.stderr
    assert launch.saw("learner-") == ["0|PCI_BUS_ID|0.6|"]
    assert "--gpu_memory_utilization=0.3" in launch.saw("server-0")[1]


def test_who_has_none_is_told_so(launch):
    done = launch(2, "--engine=vllm", "--learner_gpus=0", "--servers=2", "--server_gpus=1")
    assert done.returncode == 0, done.stderr
    assert launch.saw("learner-") == ["|PCI_BUS_ID||cpu"]


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ("--engine=vllm --servers=2", {}, "2 processes (learners: 0, servers: 2) would all use the first of 8 GPUs: "),
        ("--servers=2", {"JAX_PLATFORMS": "cuda"}, "3 processes (learners: 1, servers: 2) would all use the first of "),
        ("--servers=2 --server_gpus=1", {}, "--learner_gpus is missing"),
        ("--servers=2 --learner_gpus=1", {}, "--server_gpus is missing"),
        ("--servers=8 --learner_gpus=4 --server_gpus=1", {}, "are 12 GPUs, and this host has 8 (nvidia-smi -L): lower"),
        ("--servers=0 --learner_gpus=4", {"CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES=0,1 leaves 2 of this"),
        ("--servers=0 --learner_gpus=1", {"PATH": "/bin"}, "nvidia-smi, which says what GPUs this host has, is not on"),
    ],
)
def test_what_is_refused(launch, flags, environ, message):
    done = launch(8, *flags.split(), **environ)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_where_there_is_none_to_share_nothing_is_asked(launch):
    done = launch(8, "--engine=vllm", "--servers=2", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    done = launch(0, "--engine=vllm", "--servers=2", "--learner_gpus=0", "--server_gpus=0")
    assert done.returncode == 0, done.stderr
    assert launch.saw("server-0")[0] == "|PCI_BUS_ID||cpu"
