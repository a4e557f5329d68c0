"""`python -m isocompute_jax.environment`: problems of an environment, a service of it, or a game at this terminal.

    python -m isocompute_jax.environment --environment=number_hunt --problems=1000 --out=hunt.jsonl
    python -m isocompute_jax.environment --environment=games:Maze --play=mazes.jsonl
    python -m isocompute_jax.environment --environment=games:Maze --serve --port=8200

--problems writes as many as the environment itself makes, if it does. --play begins the first problem of a file; each
line that you type is a turn, up to --environment_turns of them, and Ctrl-D ends it. --serve answers runs of other
machines, or of another Python than this one, which then have --config.environment.name=http://HOST:8200;
ISOCOMPUTE_REWARD_TOKEN is asked of them, where it is set.
"""

from __future__ import annotations

import contextlib
import pathlib

from absl import flags

from isocompute_jax import app
from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say

PROBLEMS = flags.DEFINE_integer("problems", 0, "Number of problems to write.", lower_bound=0)
SEED = flags.DEFINE_integer("seed", 0, "Of the problems, or of the game that is played.", lower_bound=0)
OUT = flags.DEFINE_string("out", None, "File for the problems, .jsonl or .parquet.")
PLAY = flags.DEFINE_string("play", None, "Problem set whose first problem is played here.")
SERVE = flags.DEFINE_bool("serve", False, "Serve the environment over HTTP.")
HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to serve at; 0.0.0.0 for all of this machine's.")
PORT = flags.DEFINE_integer("port", 8200, "Port to serve at; 0 for any that is free.", 0, 65535)
define_flags(EnvironmentConfig)


def main() -> None:
    """Flags -> one of the three."""
    config = from_flags(EnvironmentConfig)
    if not config.name:
        raise InputError("--environment: name one, such as number_hunt, or package.module:Class of your own")
    if [bool(PROBLEMS.value), PLAY.value is not None, SERVE.value].count(True) != 1:
        raise InputError("give one of --problems=COUNT, --play=FILE and --serve")
    if PROBLEMS.value:
        write(config)
    elif PLAY.value is not None:
        play(config, PLAY.value)
    else:
        serve(config)


def write(config: EnvironmentConfig) -> None:
    """Problems -> a file."""
    from isocompute_jax.environments.registry import get_kind
    from isocompute_jax.tasks import write_problems

    out = pathlib.Path(app.needed(OUT, "say where the problems go, such as --out=problems.jsonl"))
    problems = get_kind(config.name, config.options).problems(PROBLEMS.value, SEED.value)
    write_problems(out, problems)
    say(f"{out}: {len(problems)} problems of {config.name}")


def play(config: EnvironmentConfig, path: str) -> None:
    """Plays the first problem of a file with who sits here."""
    from isocompute_jax.environments.episodes import Play
    from isocompute_jax.environments.runner import Runner
    from isocompute_jax.tasks import read_problems
    from isocompute_jax.tasks.graders.protocol import Failure

    problem = read_problems(path, grader_name=None)[0]
    turns: list[str] = []
    total = 0.0
    with contextlib.closing(Runner(config)) as runner:
        say(problem.text)
        while True:
            step = runner.play(Play("terminal", problem, SEED.value, tuple(turns))).result()
            if isinstance(step, Failure):
                raise InputError(f"--environment={config.name}: {step.kind}: {step.line}")
            total += step.reward
            if turns:
                say(f"[reward {step.reward:g}{', done' if step.done else ''}]")
            if step.observation is not None:
                say(step.observation)
            if step.done or len(turns) == config.turns:
                break
            try:
                turns.append(input())
            except EOFError:
                break
    say(f"reward {total:g} in {len(turns)} turns")


def serve(config: EnvironmentConfig) -> None:
    """Answers until it is interrupted."""
    from isocompute_jax.environments.server import EnvironmentServer

    server = EnvironmentServer(config, HOST.value, PORT.value)
    say(f"{config.name} is served at http://{HOST.value}:{server.port}")
    try:
        server.serve()
    finally:
        server.close()


if __name__ == "__main__":
    app.run(main)
