"""The module of docs/environments.md that plays OpenEnv servers, by messages as a server of OpenEnv 0.3 gave them."""

import asyncio
import json
import pathlib
import re
import sys
import types

import pytest

from isocompute_jax.records.rollout import Problem

PAGE = pathlib.Path(__file__).parents[2] / "docs/environments.md"
PROBLEM = Problem("p", "0,", "", "g")


class Socket:
    """A server's side: an observation after `reset`, and a reward for the action that it waits for."""

    def __init__(self):
        self.said, self.closed = [], False

    async def send(self, text):
        self.said.append(json.loads(text))

    async def recv(self):
        kind, data = self.said[-1]["type"], self.said[-1]["data"]
        if kind == "reset":
            return json.dumps(
                {"type": "observation", "data": {"observation": {"text": "guess"}, "reward": None, "done": False}}
            )
        if "message" not in data:
            return json.dumps({"type": "error", "data": {"code": "VALIDATION_ERROR"}})
        right = data["message"] == "7="
        found = {"observation": {"text": "+"}, "reward": float(right), "done": right}
        return json.dumps({"type": "observation", "data": found})

    async def close(self):
        self.closed = True


@pytest.fixture
def open_env(monkeypatch):
    """The page's module, and the sockets that it opens."""
    found = re.search(r"```python\n# open_env\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    module, sockets = types.ModuleType("open_env"), []
    exec(found[1], module.__dict__)

    async def connect(url):
        sockets.append(Socket())
        return sockets[-1]

    monkeypatch.setitem(sys.modules, "websockets", types.SimpleNamespace(connect=connect))
    return module.OpenEnv, sockets


def test_a_rollout_is_a_session(open_env):
    make, sockets = open_env
    played = make()

    async def play():
        first = await played.reset(PROBLEM, 3)
        steps = [await played.step("4="), await played.step("7=")]
        await played.close()
        return first, steps

    first, (wrong, right) = asyncio.run(play())
    [socket] = sockets
    assert first == "guess" and (wrong.observation, wrong.reward, wrong.done) == ("+", 0.0, False)
    assert (right.reward, right.done) == (1.0, True) and socket.closed
    assert socket.said == [
        {"type": "reset", "data": {"seed": 3}},
        {"type": "step", "data": {"message": "4="}},
        {"type": "step", "data": {"message": "7="}},
    ]


def test_an_error_of_the_server_is_one_of_the_environment(open_env):
    async def play():
        played = open_env[0](action="move")
        await played.reset(PROBLEM, 0)
        await played.step("4=")

    with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
        asyncio.run(play())
    asyncio.run(open_env[0]().close())  # before it was opened
