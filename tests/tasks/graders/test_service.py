"""A reward service over real HTTP: one that answers, fails for a while, delays, refuses, or sends garbage."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time

import numpy as np
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Grading, RewardConfig
from isocompute_jax.tasks.graders.service import BATCH
from tests.tasks.groups import decode, group, rewards_of


class Judge(http.server.ThreadingHTTPServer):
    """Rewards a completion by its length; `faults` are answered first, one for each request."""

    daemon_threads = True

    def __init__(self, faults=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults = list(faults)
        self.elsewhere = ""
        self.requests = []
        self.authorizations = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/grade"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        judge: Judge = self.server  # pyright: ignore[reportAssignmentType]
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with judge.lock:
            judge.requests.append(asked)
            judge.authorizations.append(self.headers.get("Authorization"))
            fault = judge.faults.pop(0) if judge.faults else None
            judge.at_once += 1
            judge.most_at_once = max(judge.most_at_once, judge.at_once)
        rewards = [len(text) / 10 for text in asked["completions"]]
        answer = {"rewards": rewards, "metrics": [{"words": len(text.split())} for text in asked["completions"]]}
        status, body = 200, json.dumps(answer)
        match fault:
            case int():
                status, body = fault, "try later"
            case float():
                time.sleep(fault)
            case str():
                body = fault
        with judge.lock:
            judge.at_once -= 1
        with contextlib.suppress(OSError):  # the client may have given up
            self.send_response(307 if judge.elsewhere else status)
            if judge.elsewhere:
                self.send_header("Location", judge.elsewhere)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    def log_message(self, format, *args):
        """Silence."""


@contextlib.contextmanager
def judging(*faults, **options):
    with Judge(faults) as judge:
        thread = threading.Thread(target=judge.serve_forever, args=(0.01,))
        thread.start()
        config = RewardConfig(function=judge.url, **{"deadline_s": 10.0, **options})
        engine = Grading(config, decode)
        try:
            with contextlib.closing(engine):
                yield judge, engine
        finally:
            judge.shutdown()
            thread.join()


PROBLEM = Problem("p", "Why?", "because", "judged")


def test_the_environments_token_goes_along(monkeypatch):
    with judging() as (judge, engine):
        engine.submit(group("a"), PROBLEM).result()
        assert judge.authorizations == [None]
    monkeypatch.setenv("ISOCOMPUTE_REWARD_TOKEN", "s3cret")
    with judging() as (judge, engine):
        engine.submit(group("a"), PROBLEM).result()
        assert judge.authorizations == ["Bearer s3cret"]


def test_a_redirect_carries_nothing_elsewhere(monkeypatch):
    monkeypatch.setenv("ISOCOMPUTE_REWARD_TOKEN", "s3cret")
    with judging() as (other, _), judging(on_failure="zero") as (judge, engine):
        judge.elsewhere = other.url
        found = engine.submit(group("a"), PROBLEM).result()
    assert found.reward_failures == 1 and judge.authorizations == ["Bearer s3cret"] and not other.requests


def test_a_group_is_one_request_of_its_distinct_completions():
    with judging() as (judge, engine):
        engine.check([PROBLEM])
        found = engine.submit(group("a b", "cc", "a b"), PROBLEM).result()
    np.testing.assert_allclose(rewards_of(found), [0.3, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_array_equal(found.reward_metrics["words"], [2, 1, 2])
    assert [asked["completions"] for asked in judge.requests] == [[""], ["a b", "cc"]]
    assert judge.requests[1]["problems"] == [{"id": "p", "prompt": "Why?", "answer": "because", "task": "judged"}] * 2


def test_large_groups_are_cut_and_requests_run_side_by_side():
    texts = [f"{i:03d}" for i in range(3 * BATCH)]
    with judging(*[0.2] * 3, concurrency=2) as (judge, engine):
        found = engine.submit(group(*texts), PROBLEM).result()
    assert found.reward_failures == 0 and [len(asked["completions"]) for asked in judge.requests] == [BATCH] * 3
    assert judge.most_at_once == 2


def test_what_may_pass_is_tried_again():
    with judging(503, 429, 500) as (judge, engine):
        found = engine.submit(group("abc"), PROBLEM).result()
    assert found.reward_failures == 0 and len(judge.requests) == 4


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("not json", "not JSON"), ("{}", "must have a list 'rewards' of 1 numbers; it has none"),
        ('{"rewards": [1, 2]}', "it has 2 of them"),
        ('{"rewards": ["high"]}', "returned 'high', a str and not a number"), ('{"rewards": [NaN]}', "not finite"),
        ('{"rewards": [1], "metrics": [3]}', "'metrics' must be a list of 1 objects"),
        (404, "answered 404: try later"), (5.0, "no answer within 0.6 s"),
    ],
)  # fmt: skip
def test_garbage_and_silence_are_counted_failures(fault, message, caplog):
    with judging(fault, deadline_s=0.6) as (_, engine):
        found = engine.submit(group("abc"), PROBLEM).result()
    assert rewards_of(found) == [0.0] and found.reward_failures == 1 and message in caplog.text


def test_a_judge_that_is_down_is_said_at_the_start():
    with Judge() as judge:
        url = judge.url
    engine = Grading(RewardConfig(function=url, deadline_s=0.6), lambda batch: ["" for _ in batch])
    with contextlib.closing(engine), pytest.raises(InputError, match=rf"{url} hung .*no answer within 0.6 s.*onnect"):
        engine.check([PROBLEM])
