"""Several teams in one process, linked by real sockets: they meet, agree, talk, and end together."""

import threading
import time

import pytest

from isocompute_jax.distributed import alone, team
from isocompute_jax.records.errors import InputError, RunError
from tests.distributed.company import SOON, Company


@pytest.fixture
def company(monkeypatch):
    monkeypatch.setattr(team, "BEAT_S", 0.05)
    made = []

    def make(count, **options):
        made.append(Company(count, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_process_0_finds_and_all_have_it(company):
    three = company(3)
    asked = []

    def do(each):
        return each.broadcast(lambda: asked.append(each.index) or {"found": each.index})

    assert three.all(do) == [{"found": 0}] * 3
    assert asked == [0]


def test_what_process_0_raises_all_raise(company):
    def do(each):
        def fail():
            raise InputError("config.seed: no")

        each.broadcast(fail)

    found = company(2).all(do)
    assert [type(error) for error in found] == [InputError, InputError]
    assert [str(error) for error in found] == ["config.seed: no"] * 2


def test_what_one_raises_all_raise_with_its_name(company):
    def do(each):
        def fail():
            if each.index == 2:
                raise RunError("the disk is full")
            return each.index

        return each.everywhere(fail)

    found = company(3).all(do)
    assert [(type(error), str(error)) for error in found] == [(RunError, "process 2: the disk is full")] * 3
    assert company(2).all(lambda each: each.everywhere(lambda: each.index)) == [0, 1]


def test_who_disagrees_is_named(company):
    found = company(3).all(lambda each: each.agree("the shape of step 7", [4, 2] if each.index != 1 else [4, 3]))
    assert all(isinstance(error, RunError) for error in found)
    assert "process 1 disagrees with process 0 about the shape of step 7: [4, 3], not [4, 2]" in str(found[2])
    assert company(3).all(lambda each: each.agree("x", {"a": 1})) == [None] * 3
    found = company(2).all(lambda each: each.agree("x", {"a": 1, "b": 2.0 + each.index, "c": 0}))
    assert "process 1 disagrees with process 0 about x: {'b': 3.0}, not {'b': 2.0}. They" in str(found[0])


def test_who_waits_does_what_it_is_asked(company):
    done = []

    def do(each):
        each.serve("note", lambda *what: done.append((each.index, *what)))

        def find():
            each.call("note", 1, "a")
            each.call("note", 2, "b")
            return 3

        return each.broadcast(find)

    two = company(3)
    assert two.all(do) == [3] * 3
    assert sorted(done) == [(i, n, c) for i in (1, 2) for n, c in ((1, "a"), (2, "b"))]


def test_messages_that_come_before_anybody_listens_are_kept(company):
    two = company(2)
    two.teams[0].send(1, "news", "early")
    two.teams[0].broadcast(lambda: None)
    two.teams[1].broadcast(lambda: None)  # it has read what came before
    heard, came = [], threading.Event()

    def hear(sender, value):
        heard.append((sender, value))
        if len(heard) == 2:
            came.set()

    two.teams[1].on("news", hear)
    two.teams[0].send_all("news", "late")
    assert came.wait(SOON) and heard == [(0, "early"), (0, "late")]


def test_a_flag_is_seen_by_process_0(company):
    two = company(2)
    two.teams[1].raise_flag_if(lambda: True)
    deadline = time.monotonic() + SOON
    while not two.teams[0].flagged:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert two.teams[1].flagged


def test_a_process_that_dies_ends_all_others_with_its_name(company):
    three = company(3)
    three.pairs[1][1].close()  # as the system does for a process that was killed
    three.links[1][1].close()
    three.wait_ended(0, 1)
    for i in (0, 1):
        reason, code = three.ended[i]
        assert reason.startswith("process 2 has died") and code == 1


def test_the_death_of_process_0_ends_all_others(company):
    three = company(3)
    three.teams[0]._leaving = True  # the dead say nothing
    for ours, _ in three.links:
        ours.close()
    three.wait_ended(1, 2)
    assert three.ended[2][0].startswith("process 0 has died")


def test_a_silent_process_ends_all(company):
    two = company(2, stall_s=0.5)
    two.teams[1].send_all = lambda *message: None  # its beat, as of a process that was stopped
    two.wait_ended(0)
    assert "process 1 has not been heard of for" in two.ended[0][0]
    two.wait_ended(1)
    assert two.ended[1] == two.ended[0]  # were it to wake up, it would hear why


def test_who_is_awaited_too_long_ends_all(company):
    two = company(2, stall_s=0.5)
    for each in two.teams:
        each.steady()
    two.pool.submit(two.teams[0].agree, "where we are", 1)  # and process 1 never comes
    two.wait_ended(0, 1)
    assert two.ended[1][0].startswith("process 1 is awaited for")


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_who_does_not_come_to_a_computation_is_named_to_all(company, missing):
    """It has met the others, so that all have come as far; they wait in a collective, which nothing interrupts."""
    three = company(3, stall_s=0.5)

    def do(each):
        each.steady()
        each.agree("the shapes", 1)
        if each.index != missing:
            each.arrive()

    assert three.all(do) == [None] * 3
    three.wait_ended(0, 1, 2)
    assert all(reason.startswith(f"process {missing} is awaited for") for reason, _ in three.ended.values())


def test_process_0_that_does_not_come_to_agree_is_named(company):
    two = company(2, stall_s=0.5)
    two.all(lambda each: each.steady())
    two.pool.submit(two.teams[1].agree, "where we are", 1)
    two.wait_ended(0, 1)
    assert two.ended[0] == two.ended[1] and two.ended[1][0].startswith("process 0 is awaited for")


def test_before_the_run_is_steady_all_is_given_longer(company, monkeypatch):
    monkeypatch.setattr(team, "EARLY", 3)
    two = company(2, stall_s=0.3)
    two.teams[1].arrive()
    time.sleep(0.6)
    assert not two.ended
    two.wait_ended(0, 1)
    assert two.ended[1][0].startswith("process 0 is awaited for")


def test_a_computation_may_take_its_time_and_so_may_who_is_told_of_it(company):
    """All are in it, or wait for process 0, which has work of its own: none is behind, whatever it is called for."""
    three = company(3, stall_s=0.3)

    def do(each):
        each.steady()
        each.serve("draw", lambda: each.arrive() or time.sleep(0.4))

        def find():
            time.sleep(0.4)
            each.call("draw")
            each.arrive()
            time.sleep(0.4)

        each.broadcast(find)
        each.everywhere(lambda: time.sleep(0.0 if each.index else 0.4))
        each.arrive()
        time.sleep(0.0 if each.index else 0.4)
        each.follow()
        each.agree("what follows", 1)

    assert three.all(do) == [None] * 3
    assert not three.ended


def test_who_has_come_to_other_places_disagrees(company):
    def do(each):
        if each.index:
            each.arrive()
        each.agree("the shapes", 1)

    found = company(2).all(do)
    assert "process 1 disagrees with process 0 about how far they are: 2, not 1" in str(found[0])


def test_process_0_may_take_its_time(company):
    two = company(2, stall_s=0.3)
    for each in two.teams:
        each.steady()

    def find():
        time.sleep(1.0)
        return "a rollout"

    assert two.all(lambda each: each.broadcast(find)) == ["a rollout"] * 2
    assert not two.ended


def test_who_fails_says_so_and_ends_the_others_with_its_code(company):
    three = company(3)
    three.teams[1].leave("failed: no room on the disk", 2)
    three.wait_ended(0, 2)
    assert three.ended[0] == three.ended[2] == ("process 1 failed: no room on the disk", 2)
    assert 1 not in three.ended


def test_leaving_is_no_death(company):
    two = company(2)
    assert two.all(lambda each: each.broadcast(lambda: 1)) == [1, 1]
    two.all(lambda each: each.leave())
    time.sleep(0.3)
    assert not two.ended


def test_one_process_is_the_same_code():
    single = alone()
    assert single.leads and single.broadcast(lambda: 3) == 3 and single.everywhere(lambda: 4) == 4
    single.agree("anything", 1)
    single.call("nothing")
    single.leave()
    with pytest.raises(RunError, match=r"^no$"):
        single.broadcast(lambda: (_ for _ in ()).throw(RunError("no")))
