"""Environments of the verifiers library (0.4), played by its own package: `verifiers:TASKSET`.

There a rollout is a program that asks an OpenAI endpoint for a model's turns. Here the endpoint is a server on this
machine's loopback, which knows rollouts by the session that verifiers names in a header: a request is the environment's
answer to the turn before, and its reply is the policy's next turn. So whatever verifiers makes of tasks, users, stops
and rewards is made by it.

The program is a chat in this process (`ChatHarness`), in place of one that verifiers starts anew for each rollout. It
has no tools: environments whose model calls tools by the API's tool calls are refused, as are those that rewrite what
was said before, because a policy is trained on what it read.

Options are the fields of the taskset's config; beside them `env` (an environment that is paired with the taskset),
`role` (who of several agents the policy is; else the first) and `deterministic` (that the same turns are answered by
the same words, which the library does not say).
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from isocompute_jax.environments.protocol import InvalidStepError, Step
from isocompute_jax.environments.registry import VERIFIERS, Kind
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem

OWN = ("env", "role", "deterministic")
SESSION = "X-Session-ID"
HARNESS = "isocompute_chat"
"""The name by which verifiers imports `ChatHarness`."""


def verifiers_kind(name: str, options: Mapping[str, Any]) -> Kind:
    """The environments of a taskset.

    Raises:
      InputError: verifiers is not installed, or knows no such taskset or field.
    """
    if importlib.util.find_spec("verifiers") is None:
        raise InputError(
            f"environment {name!r} needs verifiers, which is not installed: pip install 'isocompute-jax[verifiers]'"
        )
    stage = Stage(name.removeprefix(VERIFIERS), options)
    return Kind(
        name,
        lambda: Played(stage),
        "loop",
        bool(options.get("deterministic")),
        shared=stage,
    )


class Stage:
    """A taskset, its environment, and the endpoint that its rollouts ask; the last two on one event loop."""

    def __init__(self, taskset: str, options: Mapping[str, Any]):
        from verifiers.v1.configs.agent import agent_config_fields  # pyright: ignore[reportMissingImports]
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # pyright: ignore[reportMissingImports]

        sys.modules.setdefault(HARNESS, _harness_module())
        fields = {key: value for key, value in options.items() if key not in OWN}
        chosen: dict[str, Any] = {"taskset": {"id": taskset, **fields}, "id": options.get("env", "")}
        try:
            roles = list(agent_config_fields(resolve_env_config(dict(chosen))))
            self.role = options.get("role") or roles[0]
            if self.role not in roles:
                raise ValueError(f"role {self.role!r} is none of {roles}")
            chosen[self.role] = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
            self._env = load_environment(resolve_env_config(chosen))
        except Exception as error:  # of many types, with the library's own advice
            raise InputError(f"environment verifiers:{taskset}: {error}") from error
        self.name = taskset
        self._tasks: list[Any] = []
        self._more: Iterator[Any] = iter(self._env.taskset)
        self.rollouts: dict[str, Played] = {}
        self._opening: asyncio.Task[None] | None = None
        self._url = ""

    def task(self, index: int) -> Any:
        """The task of an index. Raises InputError where there are not so many."""
        while len(self._tasks) <= index:
            task = next(self._more, None)
            if task is None:
                raise InputError(
                    f"environment verifiers:{self.name}: it has {len(self._tasks)} tasks, and no number {index}"
                )
            self._tasks.append(task)
        return self._tasks[index]

    async def run(self, rollout: Played, task: Any) -> Any:
        """One episode of a task, whose model is `rollout`."""
        from verifiers.v1.clients import ModelContext  # pyright: ignore[reportMissingImports]
        from verifiers.v1.configs.client import EvalClientConfig  # pyright: ignore[reportMissingImports]

        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)
        sessions: list[str] = []

        def begun(trace: Any) -> None:
            if not trace.agent.name or trace.agent.name == self.role:
                sessions.append(trace.id)
                self.rollouts[trace.id] = rollout

        try:
            # One for all: verifiers keeps a client, with its connections, for each that differs.
            client = EvalClientConfig(base_url=f"{self._url}/v1", api_key_var="ISOCOMPUTE_NO_KEY")
            [slot] = self._env.slots(task)
            return await self._env.run_slot(slot, ModelContext("policy", client), on_trace=begun)
        finally:
            for session in sessions:
                del self.rollouts[session]

    async def aclose(self) -> None:
        """Ends what serves; the next rollout opens it anew, as that of a run does after the environment was tried."""
        if self._opening is not None:
            self._opening = None
            self._closing.set()
            await self._serving

    async def _open(self) -> None:
        self._closing, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(ready))
        await ready

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        from aiohttp import web

        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with self._env.serving():
                ready.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(RuntimeError(f"verifiers cannot serve {self.name}: {error}"))
        finally:
            await runner.cleanup()

    async def _answer(self, request: Any) -> Any:
        from aiohttp import web

        rollout = self.rollouts.get(request.headers.get(SESSION, ""))
        if rollout is None:
            message = "the rollout is over, or this is another agent than the policy, which needs a model of its own"
            return web.json_response({"error": {"message": message}}, status=404)
        text = await rollout.asked_for(await request.json())
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        answer = {"id": "turn", "object": "chat.completion", "created": 0, "model": "policy"}
        return web.json_response({**answer, "choices": [choice], "usage": usage})

    def problems(self, count: int) -> list[Problem]:
        """The first tasks as problems."""
        found = []
        for index in range(count):
            messages = tuple(_plain(message) for message in _messages(self.task(index).data))
            prompt = messages or ({"role": "user", "content": ""},)
            found.append(Problem(f"{self.name}-{index}", prompt, "", self.name, extra={"index": index}))
        return found


@dataclasses.dataclass(eq=False)
class Played:
    """One rollout: a program of verifiers that waits for a turn whenever it is not waited for."""

    stage: Stage
    running: asyncio.Task[Any] | None = None
    said: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # the messages of the last request

    def problems(self, count: int, seed: int) -> list[Problem]:
        """The taskset's first tasks, in its order."""
        del seed
        return self.stage.problems(count)

    async def reset(self, problem: Problem, seed: int) -> str | None:
        """Starts the program; its first request is the problem's prompt."""
        del seed
        if "index" not in problem.extra:
            raise InvalidStepError(
                f"problem {problem.id!r} has no index of a task: write the file with python -m "
                f"isocompute_jax.environment --environment={VERIFIERS}{self.stage.name} --problems=COUNT"
            )
        self._requests: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[str]]] = asyncio.Queue()
        task = self.stage.task(int(problem.extra["index"]))
        self.running = asyncio.create_task(self.stage.run(self, task))
        found = await self._next()
        if isinstance(found, Step):
            raise InvalidStepError(f"verifiers:{self.stage.name} ended before it asked for a turn")
        asked = [message for message in map(_plain, problem.prompt) if message["content"]]  # pyright: ignore[reportArgumentType]
        if found[: len(asked)] != asked:
            raise InvalidStepError(
                f"problem {problem.id!r} is not the prompt of its task any more: write the file anew"
            )
        return _text(found[len(asked) :])

    async def step(self, text: str) -> Step:
        """Replies with a turn, and waits for what the program makes of it."""
        before = [*self.said, {"role": "assistant", "content": text}]
        self._reply.set_result(text)
        found = await self._next()
        if isinstance(found, Step):
            return found
        if found[: len(before)] != before:
            raise InvalidStepError(
                f"verifiers:{self.stage.name} changed what was said before: such are not for training"
            )
        return Step(_text(found[len(before) :]) or "")

    async def close(self) -> None:
        """Ends the program."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])

    async def asked_for(self, request: dict[str, Any]) -> str:
        """The turn that a request gets; none once the program has ended, which nobody hears."""
        assert self.running is not None
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._requests.put((request, reply))
        await asyncio.wait({reply, self.running}, return_when=asyncio.FIRST_COMPLETED)
        return reply.result() if reply.done() else ""

    async def _next(self) -> list[dict[str, Any]] | Step:
        """The messages of the next request, or what the episode was worth."""
        assert self.running is not None
        request = asyncio.create_task(self._requests.get())
        await asyncio.wait({request, self.running}, return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            request.cancel()
            return _worth(self.running.result(), self.stage)
        body, self._reply = request.result()
        if body.get("tools"):
            raise InvalidStepError(
                f"verifiers:{self.stage.name} has tools that are called by the API, which are not played"
            )
        self.said = [_plain(message) for message in body["messages"]]
        return self.said


def _worth(episode: Any, stage: Stage) -> Step:
    """What the policy's part of an episode came to."""
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors) or "the episode failed")
    own = [trace for trace in episode.traces if not trace.agent.name or trace.agent.name == stage.role]
    metrics = {name: float(value) for trace in own for name, value in trace.metrics.items()}
    return Step(reward=float(sum(trace.reward for trace in own)), done=True, metrics=metrics)


def _messages(data: Any) -> list[Any]:
    """The messages that a task begins with."""
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return [*system, *(data.prompt or [])]


def _plain(message: Any) -> dict[str, str]:
    """Role and text of a message. Raises InvalidStepError where it has more than text."""
    plain = message if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    content = plain.get("content") or ""
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise InvalidStepError("a message has images or files, which are not read")
        content = "".join(part["text"] for part in content)
    return {"role": plain["role"], "content": content}


def _text(messages: list[dict[str, Any]]) -> str | None:
    """What further messages say; None for none."""
    return "\n\n".join(message["content"] for message in messages) if messages else None


def _harness_module() -> Any:
    """A module with the harness, as verifiers imports it."""
    import types

    from verifiers.v1.configs.harness import HarnessConfig  # pyright: ignore[reportMissingImports]
    from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
    from verifiers.v1.harness import Harness  # pyright: ignore[reportMissingImports]
    from verifiers.v1.runtimes import ProgramResult  # pyright: ignore[reportMissingImports]

    class ChatConfig(HarnessConfig):
        """Nothing to choose."""

    class ChatHarness(Harness[ChatConfig]):
        """A chat without tools, in this process."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            """Asks for one turn."""
            import aiohttp

            del trace, runtime, tool_interception_url
            asked = {"model": ctx.model, "messages": [_wire(message, message_to_wire) for message in _messages(data)]}
            if mcp_urls:
                asked["tools"] = [{"type": "function", "function": {"name": name}} for name in mcp_urls]
            headers = {"Authorization": f"Bearer {secret}"}
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                url = endpoint.rstrip("/") + "/chat/completions"
                async with session.post(url, json=asked, headers=headers) as response:
                    text = await response.text()
            return ProgramResult(0 if response.status == 200 else 1, text, "" if response.status == 200 else text)

    module = types.ModuleType(HARNESS)
    vars(module).update(ChatHarness=ChatHarness, __all__=["ChatHarness"])
    ChatHarness.__module__ = ChatConfig.__module__ = HARNESS
    return module


def _wire(message: Any, to_wire: Any) -> dict[str, Any]:
    return dict(message) if isinstance(message, Mapping) else json.loads(json.dumps(to_wire(message)))
