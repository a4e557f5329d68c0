"""By which names learners and machines know each other.

`RUN#START` names a session, one start of a run; START, which is drawn at random, is known to it alone. So whoever names
a session in full is the learner whose session it is; servers tell others no more than `RUN#`.
"""

from __future__ import annotations


def shown(session: str) -> str:
    """What others are told of a session; one without a `#` is no secret."""
    run, mark, _ = session.rpartition("#")
    return run + mark if mark else session


def same_run(one: str, other: str) -> bool:
    """Whether two sessions are starts of one run, of which only one can be alive."""
    return "#" in one and "#" in other and shown(one) == shown(other)


def host_id() -> str:
    """The same for all processes of this kernel, which may so share /dev/shm; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
