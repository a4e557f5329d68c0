"""Rewards for tests of whole runs; worker processes import them, and nothing heavy with them."""

from isocompute_jax.tasks import Grade


def length(problem, completion):
    return Grade(len(completion) / 10 if len(completion) <= 2 else 0.2, {"long": float(len(completion) > 1)})


def fails_on_digits(problem, completion):
    if completion[:1].isdigit():
        raise ArithmeticError("a digit")
    return float(completion[:1] in {"+", "-", "=", ","})


def text(problem, completion):
    return "1.0"


def about_half(problem, completion):
    """What a random model gets so often that nearly every group has signal."""
    return float(completion[:1] in "02468+=")
