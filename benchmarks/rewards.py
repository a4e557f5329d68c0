"""Rewards that the benchmarks of grading use; worker processes import them, so they are in a module without flags."""

from __future__ import annotations

import asyncio
import logging
import time

from isocompute_jax.records.rollout import Problem


async def waits(problem: Problem, completion: str) -> float:
    """A judge that takes as many seconds as the problem's answer says."""
    await asyncio.sleep(float(problem.answer))
    return 1.0


def waits_in_a_process(problem: Problem, completion: str) -> float:
    """A verifier that does."""
    time.sleep(float(problem.answer))
    return 1.0


def math_verify_alone(problem: Problem, completion: str) -> float:
    """What math-verify pays without anything around it; its own time limits stay on."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return float(verify(parse(f"${problem.answer}$"), parse(completion)))


def last_total(problem: Problem, completion: str) -> float:
    """The embedded default's problems by their last running total alone: an answer may skip the others."""
    return float(completion.rpartition(",")[2] == problem.answer.rpartition(",")[2])
