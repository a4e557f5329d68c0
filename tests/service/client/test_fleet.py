"""The fleet against real servers in this process: what is sampled, where, and what becomes of it when servers fail."""

import logging
import os
import threading

import numpy as np
import pytest

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.records.errors import InputError, Interrupted, RunError
from isocompute_jax.service.client import member
from isocompute_jax.service.server import servicer
from isocompute_jax.service.server.servicer import Servicer
from tests.service.fleet_builders import (
    CONFIG,
    Live,
    fleet,
    give_weights,
    live,
    params,
    requests,
    tensors,
    until,
    until_used,
)

pytestmark = pytest.mark.usefixtures("short_polls")


def slow_engine(**changes) -> SimulatedEngine:
    """Sixteen ticks of 5 ms a group."""
    return SimulatedEngine(tensors(), **{"tokens_per_s": 200.0, "median_length": 16.0, **changes})


def ids(groups) -> list[str]:
    return sorted(group.problem_id for group in groups)


def wanted(count: int, first: int = 0) -> list[str]:
    return sorted(f"p{i}" for i in range(first, first + count))


def draws(sampler, count: int) -> None:
    """The sampler gives this many groups, each once."""
    sampler.submit(requests(count))
    assert ids(sampler.completed()) == wanted(count)


def tokens(groups) -> dict[str, list[list[int]]]:
    return {group.problem_id: [c.tokens.tolist() for c in group.completions] for group in groups}


def test_a_server_under_two_names_is_said_to_be_one(tmp_path):
    with (
        live() as [server],
        fleet(server, f"localhost:{server.port}", directory=tmp_path) as sampler,
        pytest.raises(InputError, match=r"config.service.endpoints: .* and .* are one server under two names"),
    ):
        sampler.update_weights(params(), version=1)


def test_every_group_comes_back_once_from_both_servers(tmp_path):
    with live(2) as servers, fleet(*servers, directory=tmp_path) as sampler:
        sampler.submit(requests(5))
        sampler.update_weights(params(), version=4)
        sampler.submit(requests(35, first=5))
        groups = list(sampler.completed())
        assert ids(groups) == wanted(40)
        assert all(len(group.completions) == 4 for group in groups)
        assert {int(v) for group in groups for c in group.completions for v in c.policy_versions} == {4}
        assert all(server.engine.tokens_generated > 0 for server in servers)
        assert sampler.redrawn_rollouts == 0
        assert list(sampler.completed()) == []


def test_nothing_is_sampled_before_weights(tmp_path, monkeypatch):
    asked, status = threading.Semaphore(0), Servicer.Status

    async def counted(*arguments):
        asked.release()
        return await status(*arguments)

    monkeypatch.setattr(Servicer, "Status", counted)
    with live() as [server], fleet(server, directory=tmp_path) as sampler:
        sampler.submit(requests(3))
        for _ in range(3):  # it is up, and its answers have been heard
            assert asked.acquire(timeout=30)
        assert server.groups == 0 == server.engine.tokens_generated
        sampler.update_weights(params(), version=1)
        assert ids(sampler.completed()) == wanted(3)


def test_lanes_do_not_mix_and_more_may_be_submitted_while_reading(tmp_path):
    with live() as [server], fleet(server, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(4))
        sampler.submit(requests(3, first=100), lane="evaluation")
        seen = []
        for group in sampler.completed():
            seen.append(group)
            if len(seen) == 2:
                sampler.submit(requests(2, first=4))
        assert ids(seen) == wanted(6)
        assert ids(sampler.completed(lane="evaluation")) == wanted(3, first=100)


def test_load_is_shared_by_outstanding_rollouts(tmp_path):
    """One group of 64 weighs as much as 16 of 4."""
    with live(2, engine=None) as servers, fleet(*servers, directory=tmp_path) as sampler:
        for server in servers:
            server.engine.frozen = True
        sampler.update_weights(params(), version=1)
        sampler.submit([*requests(1, group_size=64), *requests(16, first=1)])
        until(lambda: sum(server.groups for server in servers) == 17)
        assert sorted(server.groups for server in servers) == [1, 16]
        for server in servers:
            server.engine.frozen = False
        assert ids(sampler.completed()) == wanted(17)


def test_new_weights_reach_every_server(tmp_path):
    with live(2) as servers, fleet(*servers, directory=tmp_path) as sampler:
        for version in (1, 2, 3):
            sampler.update_weights(params(version), version=version)
            assert [server.engine.version for server in servers] == [version] * 2
            assert servers[0].engine.weights == servers[1].engine.weights
            sampler.submit(requests(4))
            versions = {int(v) for g in sampler.completed() for c in g.completions for v in c.policy_versions}
            assert versions == {version}


@pytest.mark.parametrize("mode", ["auto", "shared"])
def test_shared_files_are_used_in_place(tmp_path, mode):
    with live(weights_dir=str(tmp_path)) as [server], fleet(server, directory=tmp_path, push=mode, version=1):
        assert not list(tmp_path.glob("isocompute-staging-*/*"))
        assert len(server.engine.weights) > 0


def test_auto_streams_to_a_server_that_cannot_read_the_file(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with live(weights_dir=str(theirs)) as [server], fleet(server, directory=tmp_path, push="auto", version=1):
        assert server.engine.version == 1
    with (
        live(weights_dir=str(theirs)) as [server],
        fleet(server, directory=tmp_path, push="shared") as sampler,
        pytest.raises(InputError, match="weights_dir"),
    ):
        sampler.update_weights(params(), version=1)


def test_a_group_whose_server_dies_is_drawn_again_whole(tmp_path):
    doomed, kept = Live(engine=slow_engine()), Live(engine=slow_engine())
    with live(engine=slow_engine()) as [alone], fleet(alone, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(10))
        undisturbed = tokens(sampler.completed())
    with fleet(doomed, kept, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(10))
        until(lambda: doomed.engine.tokens_generated > 20)
        doomed.engine.frozen = True  # in the middle of its groups
        doomed.stop()
        groups = list(sampler.completed())
        assert tokens(groups) == undisturbed
        assert sampler.redrawn_rollouts == 4 * 5
    kept.stop()


def test_a_server_whose_engine_died_is_taken_out(tmp_path):
    with live(2) as [bad, good], fleet(bad, good, directory=tmp_path, version=1) as sampler:
        bad.engine.dead = True
        draws(sampler, 10)
        assert sampler.redrawn_rollouts >= 4


def test_a_frozen_engine_behind_a_live_server_is_found_by_progress(tmp_path):
    with live(2) as [frozen, good], fleet(frozen, good, directory=tmp_path, stall_s=0.5, version=1) as sampler:
        frozen.engine.frozen = True
        draws(sampler, 10)
        assert sampler.redrawn_rollouts >= 4 * 5
        frozen.engine.frozen = False
        until_used(sampler, frozen)


def test_a_frozen_process_is_found_by_its_silence(tmp_path):
    with live(2) as [frozen, good], fleet(frozen, good, directory=tmp_path, stall_s=0.3, version=1) as sampler:
        thaw = threading.Event()
        frozen.loop.call_soon_threadsafe(thaw.wait)  # its event loop stands still, its connections do not
        draws(sampler, 10)
        thaw.set()
        until_used(sampler, frozen)


def test_a_restarted_server_gets_the_current_weights_before_it_serves(tmp_path):
    """From what was laid down: the params may be gone."""
    first, other = Live(), Live()
    with fleet(first, other, directory=tmp_path) as sampler:
        sampler.update_weights(params(1), version=1)
        first.stop()
        ours = params(2)
        sampler.update_weights(ours, version=2)
        for leaf in ours["layers"].values():
            leaf.delete()
        again = Live(port=first.port, wait_for_weights=False)  # serves its model directory's weights, version 0
        until(lambda: again.engine.version == 2)
        assert again.engine.weights == other.engine.weights
        sampler.submit(requests(20))
        groups = list(sampler.completed())
        assert {int(v) for group in groups for c in group.completions for v in c.policy_versions} == {2}
        until_used(sampler, again)
    for server in (again, other):
        server.stop()


def test_all_gone_then_back(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    server = Live()
    with fleet(server, directory=tmp_path, wait_s=60.0, version=1) as sampler:
        server.stop()
        sampler.submit(requests(3))
        until(lambda: "no sampler is left" in caplog.text)
        assert f"{server.address} (for " in caplog.text and "gives up in 60 s (config.service.wait_s)" in caplog.text
        again = Live(port=server.port)
        assert ids(sampler.completed()) == wanted(3)
        until(lambda: "a sampler is back" in caplog.text)
    again.stop()


def test_all_gone_for_good_ends_the_run(tmp_path):
    server = Live()
    with fleet(server, directory=tmp_path, wait_s=0.3, version=1) as sampler:
        server.stop()
        sampler.submit(requests(3))
        with pytest.raises(RunError, match=rf"no sampler is left: {server.address} \(for .*gives up after 0 s"):
            list(sampler.completed())
        with pytest.raises(RunError, match="no sampler is left"):
            sampler.update_weights(params(), version=2)


def test_an_endpoint_that_nobody_serves_is_spoken_of_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(member, "PATIENCE_S", 0.1)
    monkeypatch.setattr(member, "POLL_S", 0.05)
    server, nobody = Live(), Live()
    nobody.stop()
    with fleet(server, nobody, directory=tmp_path, version=1) as sampler:
        until(lambda: f"sampler {nobody.address} is not in use yet: it cannot be reached" in caplog.text)
        draws(sampler, 3)
        assert caplog.text.count("is not in use yet") == 1
    server.stop()


def test_weights_wait_for_the_first_server(tmp_path):
    place = Live()
    place.stop()
    servers = []
    with fleet(place, directory=tmp_path, wait_s=60.0) as sampler:
        threading.Timer(0.3, lambda: servers.append(Live(port=place.port))).start()
        sampler.update_weights(params(), version=1)
        assert servers[0].engine.version == 1
    servers[0].stop()


def test_an_interrupt_ends_the_wait_for_servers(tmp_path):
    asked = threading.Event()
    server = Live()
    with fleet(server, directory=tmp_path, wait_s=60.0, interrupted=asked.is_set, version=1) as sampler:
        until(lambda: not sampler._dispatcher.gone)
        asked.set()
        draws(sampler, 3)  # as long as there are servers, the step goes on to its end
        server.stop()
        sampler.submit(requests(3))
        with pytest.raises(Interrupted):
            list(sampler.completed())


def test_a_newcomer_keeps_away_from_a_server_that_is_taken_until_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(member, "KEEP_AWAY_S", 0.5)
    with live() as [server]:
        with fleet(server, directory=tmp_path, session="one") as one:
            one.update_weights(params(), version=1)
            weights = server.engine.weights
            refused = pytest.raises(RunError, match=r"is used by another learner, 'one#.*service\.endpoints")
            with fleet(server, directory=tmp_path, session="two") as two, refused:
                two.update_weights(params(2), version=1)
            one.submit(requests(3))
            assert ids(one.completed()) == wanted(3)
            assert server.engine.weights == weights
        with fleet(server, directory=tmp_path, session="two") as two:  # one has ended, and has said so
            two.update_weights(params(2), version=1)
            assert server.engine.weights != weights


def test_a_learner_that_is_gone_without_a_word_holds_a_server_no_longer_than_the_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(servicer, "LEASE_S", 0.5)
    with live() as [server]:
        give_weights(server, tmp_path, session="one")
        with fleet(server, directory=tmp_path, session="two") as two:
            two.update_weights(params(2), version=7)
            assert server.engine.version == 7


def test_a_server_taken_by_another_learner_is_never_used_and_quarrels_end(tmp_path, monkeypatch):
    monkeypatch.setattr(servicer, "LEASE_S", 0.0)  # the other one does not keep away
    with live() as [server], fleet(server, directory=tmp_path, session="one") as one:
        one.update_weights(params(), version=1)
        with fleet(server, directory=tmp_path, session="two") as two, pytest.raises(RunError, match="another learner"):
            two.update_weights(params(2), version=1)
            for version in range(2, 100):
                one.submit(requests(2))
                # Each takes the server back; whoever sees it too often gives up.
                list(one.completed())
                two.update_weights(params(2), version=version)


def test_an_earlier_start_of_the_same_run_does_not_pass_for_this_one(tmp_path):
    with live() as [server]:
        for seed in (1, 2):
            with fleet(server, directory=tmp_path) as sampler:
                sampler.update_weights(params(seed), version=1)
                weights = server.engine.weights
                draws(sampler, 2)
            if seed == 1:
                first = weights
    assert weights != first


def test_a_full_server_is_asked_again_later(tmp_path, monkeypatch):
    def pushed_back() -> float:
        labels = {"method": "Sample", "code": "RESOURCE_EXHAUSTED"}
        return server.server.servicer.metrics.registry.get_sample_value("isocompute_refused_total", labels) or 0

    with live(max_groups=3) as [server]:
        with fleet(server, directory=tmp_path, version=1) as sampler:
            draws(sampler, 12)
            assert not pushed_back()  # its limit is known
        monkeypatch.setattr("isocompute_jax.service.client.member.Member.has_room", True)
        with fleet(server, directory=tmp_path, version=1) as sampler:
            server.engine.frozen = True
            sampler.submit(requests(12))
            until(pushed_back)
            server.engine.frozen = False
            assert ids(sampler.completed()) == wanted(12)
            assert sampler.redrawn_rollouts == 0


@pytest.mark.parametrize("in_flight", ["abort", "wait", "continue", "recompute"])
def test_weights_that_arrive_while_groups_are_drawn(tmp_path, in_flight):
    with (
        live(engine=slow_engine(tokens_per_s=100.0, median_length=32.0)) as [server],
        fleet(server, directory=tmp_path, in_flight=in_flight) as sampler,
    ):
        sampler.update_weights(params(1), version=1)
        sampler.submit(requests(6))
        until(lambda: server.engine.tokens_generated > 8)
        server.engine.frozen = True  # in the middle of all of them
        update = threading.Thread(target=sampler.update_weights, args=(params(2),), kwargs={"version": 2})
        update.start()
        until(lambda: server.do(lambda: server.engine.version == 2 or server.server.servicer.updates.senders))
        server.engine.frozen = False
        update.join()
        sampler.submit(requests(6, first=6))
        groups = list(sampler.completed())
    assert ids(groups) == wanted(12)
    spans = [tuple(dict.fromkeys(c.policy_versions.tolist())) for group in groups for c in group.completions]
    late = [s for g in groups if int(g.problem_id[1:]) >= 6 for s in (c.policy_versions for c in g.completions)]
    assert all(np.all(versions == 2) for versions in late)
    if in_flight == "abort":
        assert set(spans) == {(2,)} and sampler.redrawn_rollouts == 24
    elif in_flight == "wait":
        assert set(spans) == {(1,), (2,)} and sampler.redrawn_rollouts == 0
    else:
        assert (1, 2) in spans and sampler.redrawn_rollouts == 0


def test_close_with_groups_in_flight_frees_the_server_and_is_idempotent(tmp_path):
    with live(engine=slow_engine()) as [server], fleet(server, directory=tmp_path) as sampler:
        server.engine.frozen = True
        sampler.update_weights(params(), version=1)
        sampler.submit(requests(5))
        until(lambda: server.groups == 5)
        sampler.close()
        until(lambda: server.groups == 0)
        sampler.close()
        assert os.listdir(tmp_path) == []
        for call in (lambda: sampler.submit(requests(1)), lambda: sampler.update_weights(params(), version=2)):
            with pytest.raises(RunError, match="closed"):
                call()


def test_a_refused_group_is_an_error_that_names_it(tmp_path):
    engine = SimulatedEngine(tensors(), max_model_len=10)
    with live(engine=engine) as [server], fleet(server, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(1, max_tokens=64))
        with pytest.raises(InputError, match=rf"{server.address} refuses the group of problem 'p0', step 0.*max_tok"):
            list(sampler.completed())


def test_another_model_is_an_error_that_names_the_tensor(tmp_path):
    with (
        live(engine=SimulatedEngine(tensors()[1:])) as [server],
        fleet(server, directory=tmp_path) as sampler,
        pytest.raises(InputError, match=rf"refuses the weights \(its --model .*\): tensor {tensors()[0].name!r}"),
    ):
        sampler.update_weights(params(), version=1)
    assert CONFIG.vocab_size == 32
