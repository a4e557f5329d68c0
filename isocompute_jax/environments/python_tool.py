"""Python as a tool: what the policy writes between `<python>` and `</python>` is run, and it reads the output.

A turn that ends with a program is answered by what the program printed; names that earlier programs of the rollout
defined are known, because those are run again before it, one by one and unheard. What was cut off (it took too long, or
printed too much) is not run again: what it defined is lost. A turn without a program is the answer, which a grader
verifies as it does completions.

Programs may look at clocks: the environment does not promise the same answers again.
"""

from __future__ import annotations

import functools
import re
from typing import ClassVar

from isocompute_jax.environments.protocol import Environment, Step
from isocompute_jax.environments.registry import Runs
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.registry import get_grader
from isocompute_jax.tasks.sandbox import Sandbox, SandboxLimits

PROGRAM = re.compile(r"<python>\n?(.*?)</python>", re.DOTALL)
UNHEARD = """import contextlib as _c, io as _i
for _program in {before!r}:
    with _c.redirect_stdout(_i.StringIO()), _c.redirect_stderr(_i.StringIO()), _c.suppress(BaseException):
        exec(_program, globals())
"""
AGAIN, AGAIN_S = 1.5, 0.2
"""An earlier program may take this many times as long as it did, and this much longer, when it is run again."""
ENDINGS = {"time": "[it took too long]", "output": "[it printed too much]", "not run": "[it was not run]"}


class PythonTool(Environment):
    """Python in the sandbox, in one rollout.

    Args:
      grade: the name of the grader that verifies the answer.
      seconds: that one program may take.
    """

    runs: ClassVar[Runs] = "process"
    stop: ClassVar[tuple[str, ...]] = ("</python>",)

    def __init__(self, grade: str = "numeric", seconds: float = 5.0):
        self._grader = get_grader(grade)
        self._seconds = seconds
        self._before: list[str] = []
        self._spent = 0.0  # seconds that these took
        self._programs = 0

    def reset(self, problem: Problem, seed: int) -> None:
        """Begins without any program."""
        del seed
        self._problem = problem

    def step(self, text: str) -> Step:
        """Runs the turn's last program, or verifies its answer."""
        programs = PROGRAM.findall(text)
        if not programs:
            grade = self._grader.grade(self._problem, text)
            return Step(reward=grade.reward, done=True, metrics={**grade.metrics, "programs": float(self._programs)})
        program, self._programs = programs[-1], self._programs + 1
        source = UNHEARD.format(before=self._before) + program if self._before else program
        again = AGAIN * self._spent + AGAIN_S * len(self._before)
        whole = self._seconds + again
        limits = SandboxLimits(test_s=whole, wall_s=2 * whole, cpu_s=whole, output_kb=64)
        [outcome] = _sandbox().run(source, [""], limits=limits)
        if outcome.ending not in ENDINGS:
            self._before.append(program)
            self._spent += min(max(outcome.seconds - self._spent, 0.0), self._seconds)
        said = outcome.stdout.decode("utf-8", "replace")
        if outcome.ending == "failed":
            errors = outcome.stderr.decode("utf-8", "replace").strip()
            said += errors.splitlines()[-1] if errors else "[it failed]"
        return Step(f"\n<output>\n{(said + ENDINGS.get(outcome.ending, '')).strip()}\n</output>\n")


@functools.cache
def _sandbox() -> Sandbox:
    """One for all rollouts of this process, which takes their programs in turn."""
    return Sandbox()
