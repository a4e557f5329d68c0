"""fleet.json against a fleet of real servers, one of which dies and comes back."""

import json

import pytest

from isocompute_jax.experiment.workdir import FleetFile
from isocompute_jax.records import run_files
from isocompute_jax.service.client import fleet as client
from isocompute_jax.service.client import member
from isocompute_jax.service.client.dispatch import FleetHealth
from isocompute_jax.service.client.member import MemberHealth
from tests.service import fleet_builders as builders

MEMBER = MemberHealth("a:1", True, 3, False, 1, 8, False, 8, "NVIDIA H200", 9, 1, 0, 0.5, 0.0, "", "")


def test_the_file_tells_who_is_up_and_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr(member, "POLL_S", 0.05)
    monkeypatch.setattr(client, "REPORT_S", 0.05)
    path = tmp_path / run_files.FLEET

    def members():
        return {found["endpoint"]: found for found in json.loads(path.read_text())["members"]} if path.exists() else {}

    with (
        builders.live(2) as (one, other),
        builders.fleet(one, other, directory=tmp_path, report=FleetFile(tmp_path)) as sampler,
    ):
        sampler.update_weights(builders.params(), version=4)
        builders.until(lambda: [found["version"] for found in members().values()] == [4, 4])
        sampler.submit(builders.requests(8))
        assert len(list(sampler.completed())) == 8
        builders.until(lambda: sum(found["tokens_drawn"] for found in members().values()) > 0)
        assert all(found["up"] and found["error"] == "" and found["down_s"] == 0 for found in members().values())
        one.stop()
        builders.until(lambda: not members()[one.address]["up"])
        gone = members()[one.address]
        assert "cannot be reached" in gone["error"] and gone["version"] is None and gone["down_s"] >= 0
        assert members()[other.address]["up"]
        port = one.port
        back = builders.Live(port=port)
        builders.until(lambda: members()[back.address]["version"] == 4)
        assert members()[back.address]["error"] == "" and "cannot be reached" in members()[back.address]["last_error"]
        back.stop()


def test_a_file_that_cannot_be_written_is_said_once(tmp_path, caplog):
    report = FleetFile(tmp_path / "is not there")
    for _ in range(3):
        report(FleetHealth(0, 0, []))
    [said] = [record.getMessage() for record in caplog.records]
    assert "fleet.json cannot be written" in said


@pytest.mark.parametrize("members", [[], [MEMBER]])
def test_the_file_is_the_health(tmp_path, members):
    FleetFile(tmp_path)(FleetHealth(5, 16, members))
    found = json.loads((tmp_path / run_files.FLEET).read_text())
    assert found.pop("written") > 1.7e9
    assert (found["groups_queued"], found["redrawn_rollouts"], len(found["members"])) == (5, 16, len(members))
