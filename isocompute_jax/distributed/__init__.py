"""Several processes, one run: how they meet, agree, talk, and end together. One process is the same code."""

from isocompute_jax.distributed.team import Team, alone

__all__ = ["Team", "alone"]
