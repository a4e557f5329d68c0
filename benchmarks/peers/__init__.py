"""Whole GRPO steps of this library, of TRL and of tunix, side by side; see `__main__`.

Peers run in an environment of their own (`make peers-env`), which has not this library: `job`, `clock` and what runs
them import nothing of it.
"""
