"""The files in which weights are put together: private, reused, removed, and swept when their process is gone."""

import os
import stat

import grpc
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.weights.receive import StagingArea
from tests import mains
from tests.service.builders import (
    TENSORS,
    Probe,
    arrays,
    chunk,
    header,
    refused,
    run,
    serving,
    staged,
    update,
)

Code = grpc.StatusCode
FIRST = arrays(1)


def test_files_are_private_reused_and_removed(tmp_path):
    async def test():
        engine = Probe()
        async with serving(engine, tmp_path) as (_, client):
            for version in (1, 2, 3):
                await client.update(update(arrays(version), version=version))
            assert len({file.path for file in engine.files}) == 1
            [path] = staged(tmp_path)
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert os.listdir(tmp_path) == []

    run(test())


def test_files_of_dead_processes_are_swept(tmp_path):
    program = f"""
import os
from isocompute_jax.service.weights.receive import StagingArea
from isocompute_jax.records.tensors import TensorSpec
StagingArea({str(tmp_path)!r}, [TensorSpec("t", "float32", (3,))]).take()
os._exit(0)
"""
    assert mains.run("-c", [program]).returncode == 0
    [dead] = staged(tmp_path)
    (tmp_path / "someone else's").touch()
    living = StagingArea(str(tmp_path), TENSORS)
    kept = living.take().file.path
    StagingArea(str(tmp_path), TENSORS).close()
    assert staged(tmp_path) == [kept] != [dead]
    living.close()
    assert os.listdir(tmp_path) == ["someone else's"]


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(InputError, match=r"--weights_dir=.*nowhere"):
        StagingArea(str(tmp_path / "nowhere"), TENSORS)


def test_no_room_is_said_and_the_old_weights_serve_on(tmp_path):
    async def test():
        engine = Probe((*TENSORS, TensorSpec("huge", "float32", (2**40,))))
        async with serving(engine, tmp_path) as (_, client):
            messages = [header(engine.facts.tensors), chunk(0, FIRST[0])]
            await refused(client.update(messages), Code.RESOURCE_EXHAUSTED, "cannot stage")
            assert await client.sample()
            assert staged(tmp_path) == []

    run(test())
