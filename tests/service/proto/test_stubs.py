"""The committed stubs are those that the .proto makes."""

import pathlib

import pytest
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).parents[3]
PROTO = "isocompute_jax/service/proto/sampler.proto"
COMMAND = f"python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. {PROTO}"


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("stubs")
    kinds = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{ROOT}", *kinds, str(ROOT / PROTO)]) == 0
    return out


@pytest.mark.parametrize("name", ["sampler_pb2.py", "sampler_pb2.pyi", "sampler_pb2_grpc.py"])
def test_stubs_are_up_to_date(generated, name):
    path = pathlib.Path(PROTO).with_name(name)
    same = (generated / path).read_bytes() == (ROOT / path).read_bytes()
    assert same, f"{path} is not what {PROTO} makes; run: {COMMAND}"
