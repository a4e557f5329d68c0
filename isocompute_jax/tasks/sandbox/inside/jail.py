"""The jail that programs run in: what this kernel lets us take from them, taken once, when the server starts.

With everything in force a program sees a root directory that holds Python's own library, the shared libraries, four
devices and one small directory to write to, all of it but the last read-only; it has no network, no shared memory, no
/proc, another user id than ours, and a process-id namespace that ends with its job.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from typing import NamedTuple

from . import linux, seccomp

MEASURES = ("processes", "network", "files", "shared_memory", "user", "landlock", "system_calls")
"""Own process ids, no network, hidden files, own shared memory, own user id; rules, where files cannot be hidden; a
filter of system calls."""

_HUGE_RANGE = 1 << 31
_FIRST_UID = 1 << 30  # far from real users, and from the subordinate ids of containers (usually below 2**29)
_FEW_IDS = range(2_000, 60_000)  # where a container has 65,536 of them
_NOBODY = 65534
_ROOTS = ("/sys", "/mnt", "/media")  # the jail's root is mounted over one of them, in our own mount namespace
_LIBRARIES = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_WRITABLE = "/tmp"
_OURS = 3  # processes of the sandbox itself in a user namespace: server, keeper, and between them its parent


class Jail(NamedTuple):
    """What is in force, and where and as whom programs run."""

    measures: frozenset[str]  # those of `MEASURES` that are in force
    uid: int | None  # the user and group id of programs; None where they keep ours
    scratch: str  # the directory that holds their working directories

    @property
    def unique_uid(self) -> int | None:
        """The user all of whose processes are this sandbox's; None if there is none."""
        return self.uid if self.uid is not None and self.uid >= _FIRST_UID else None


def enter(wanted: frozenset[str], scratch: str) -> Jail:
    """Shuts this process in, as far as is wanted and the kernel lets it; makes `scratch` where files stay visible."""
    got = _namespaces(wanted) if sys.platform == "linux" else set()
    uid = _own_uid() if os.geteuid() == 0 and "user" in wanted else None
    if uid is not None:
        got.add("user")
    # Without /proc, what programs leave is only found in a namespace, or by its user.
    all_found = "processes" in got or (uid is not None and uid >= _FIRST_UID)
    if "files" in wanted and all_found and sys.platform == "linux" and _hide_files():
        got.add("files")
        scratch = _WRITABLE
    if "files" not in got:
        os.mkdir(scratch)
        os.chmod(scratch, 0o711)  # programs pass through to directories of their own
        if "landlock" in wanted and sys.platform == "linux" and linux.landlock_version():
            got.add("landlock")
    if "system_calls" in wanted and sys.platform == "linux" and seccomp.available():
        got.add("system_calls")
    return Jail(frozenset(got), uid, scratch)


def library_is_readable(jail: Jail) -> bool:
    """Whether programs can import what is not loaded yet: they are another user, and Python may lie in a home."""
    path = os.path.dirname(os.__file__)
    while jail.uid is not None and path != os.path.dirname(path):
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return "files" in jail.measures  # there the directories above it are ours
        path = os.path.dirname(path)
    return True


def first_to_die() -> None:
    """Where memory runs out, the kernel takes the sandbox and not the run."""
    _write("/proc/self/oom_score_adj", "1000")


def _own_user_namespace() -> bool:
    """Whether we now have every capability over namespaces of our own."""
    uid, gid = os.geteuid(), os.getegid()
    return (
        _unshare(linux.CLONE_NEWUSER)
        and _write("/proc/self/setgroups", "deny")
        and _write("/proc/self/uid_map", f"{_NOBODY} {uid} 1")
        and _write("/proc/self/gid_map", f"{_NOBODY} {gid} 1")
    )


def _can_have_processes() -> bool:
    """Whether a child may have a process-id namespace: tried in one, since it could not be had twice in ours."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _unshare(linux.CLONE_NEWPID) else 1)
    return os.waitpid(child, 0)[1] == 0


def _hide_files() -> bool:
    """Whether our root directory now is one of our own making."""
    place = next((path for path in _ROOTS if os.path.isdir(path)), None)
    if place is None or not _unshare(linux.CLONE_NEWNS):
        return False
    try:
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("none", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
        for path in (*_visible(), *filter(os.path.exists, DEVICES)):
            _show(path, place)
        os.mkdir(place + _WRITABLE)
        linux.mount("none", place, None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | _flags_of(place))
        os.chroot(place)  # a process below a chroot makes no user namespaces, and so gets no capabilities back
        os.chdir("/")
    except OSError:
        return False
    return True


def _namespaces(wanted: frozenset[str]) -> set[str]:
    """Takes the namespaces that can be had, first of all one in which we may make others; returns what they give."""
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    first_to_die()
    got: set[str] = set()
    powerful = _unshare(linux.CLONE_NEWUTS)  # it changes nothing, and takes what the others take
    if not powerful and not (wanted - {"user", "landlock", "system_calls"} and _own_user_namespace()):
        return got
    spaces = {"network": linux.CLONE_NEWNET, "shared_memory": linux.CLONE_NEWIPC}
    got |= {name for name in spaces if name in wanted and _unshare(spaces[name])}
    # Not one segment: they would not count as the program's memory, and nobody would remove them.
    if "shared_memory" in got and not _write("/proc/sys/kernel/shmmni", "0"):
        got.remove("shared_memory")
    if "processes" in wanted and _can_have_processes():
        got.add("processes")
    return got


def restrict(jail: Jail) -> None:
    """Puts the kernel's rules on this process, which is about to become a program, where they are in force."""
    if "landlock" in jail.measures:
        linux.restrict_files(_visible(), [jail.scratch], filter(os.path.exists, DEVICES))
    if "system_calls" in jail.measures:
        seccomp.restrict()


def _visible() -> list[str]:
    """What a program may read: libraries, Python's own among them; outer directories first."""
    python = {os.path.dirname(os.__file__), f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib"}
    found: list[str] = []
    for path in sorted({*_LIBRARIES, *python}):
        if os.path.lexists(path) and not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def _show(path: str, place: str) -> None:
    """Makes `path` of the machine appear in the jail, read-only and without installed packages."""
    target = place + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT))
    linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | _flags_of(target)
    linux.mount("none", target, None, flags)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for packages in (f"{target}/{version}/site-packages", f"{target}/{version}/dist-packages"):
        if os.path.isdir(packages):
            linux.mount("none", packages, "tmpfs", linux.MS_RDONLY, "size=4k,mode=755")


def _flags_of(path: str) -> int:
    """Flags that a remount must keep: the kernel refuses to loosen those of a mount that is not our own."""
    found = os.statvfs(path).f_flag  # statvfs(3) numbers these five as mount(2) does, and relatime otherwise
    kept = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | linux.MS_NOATIME | linux.MS_NODIRATIME
    return found & kept | (linux.MS_RELATIME if found & os.ST_RELATIME else 0)


def open_scratch(jail: Jail, *, megabytes: int, files: int) -> None:
    """Gives a job an empty place to write to, of limited size where files are hidden."""
    if "files" in jail.measures:
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        linux.mount("none", jail.scratch, "tmpfs", flags, f"size={megabytes}m,nr_inodes={files},mode=755")


def allowance(jail: Jail, processes: int) -> int | None:
    """How many processes and threads the user of a program may have so that it has `processes`; None if unknown.

    The kernel counts by user, those of a user namespace apart; where programs keep our id ours count too.
    """
    if jail.uid is not None:
        return processes
    if "processes" in jail.measures:
        return processes + _OURS
    user, others = os.geteuid(), 0
    if not os.path.isdir("/proc/self/task"):
        return None
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            others += len(os.listdir(f"/proc/{name}/task")) if os.stat(f"/proc/{name}").st_uid == user else 0
    return others + processes


def close_scratch(jail: Jail) -> None:
    """Takes away what a job wrote, whatever it did to make that hard: rights, links, deep directories."""
    if "files" in jail.measures:
        linux.unmount(jail.scratch)
        return
    for name in os.listdir(jail.scratch):
        path = os.path.join(jail.scratch, name)
        with suppress(OSError):
            os.rmdir(path)  # most are empty
        for command in (["rm", "-rf", path], ["chmod", "-R", "u+rwx", path], ["rm", "-rf", path]):
            if os.path.lexists(path):  # after the first it is gone, unless the program took rights away
                os.spawnvp(os.P_WAIT, command[0], command)


def remove_scratch(jail: Jail) -> None:
    """Takes the empty directory away, at the end."""
    if "files" not in jail.measures:
        os.rmdir(jail.scratch)


def _own_uid() -> int | None:
    """A user id for programs, if possible one that nobody else has; None if we cannot become another user."""
    try:
        with open("/proc/self/uid_map") as file:
            everything = any(int(line.split()[2]) >= _HUGE_RANGE for line in file)
    except (OSError, ValueError, IndexError):
        everything = False
    # In containers with few ids two sandboxes may rarely share one: good enough for limits, not for killing by user.
    uid = _FIRST_UID + os.getpid() if everything else _FEW_IDS[os.getpid() % len(_FEW_IDS)]
    child = os.fork()
    if child == 0:
        try:
            become(uid)
        except OSError:
            os._exit(1)
        os._exit(0)
    return uid if os.waitpid(child, 0)[1] == 0 else None


def become(uid: int) -> None:
    """Makes this process another user's, for good."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def _unshare(flag: int) -> bool:
    try:
        linux.unshare(flag)
    except OSError:
        return False
    return True


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        return False
    return True
