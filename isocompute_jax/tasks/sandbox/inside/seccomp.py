"""Seccomp: system calls that a process forbids itself, for good and without any privilege.

What no program of this sandbox needs, and what holes in kernels are found in, is refused at the kernel's door. It is a
list of what is forbidden, and not of what is allowed: which calls Python and its C library make changes with their
versions, and a call too few would cost right programs their reward. Calls that are newer than the list do not exist
for programs, nor do those of the machine's other interfaces (32 bits, x32), by which a filter could be passed by; C
libraries then do what they did before. See https://docs.kernel.org/userspace-api/seccomp_filter.html.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from . import linux

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine -> AUDIT_ARCH of <linux/audit.h>."""
NEWEST = 462
"""The highest number that was known when the list was made (mseal, Linux 6.10); from 424 on all machines agree."""

FORBIDDEN: dict[str, dict[str, tuple[int | None, int | None]]] = {
    "programs, requests and keys that the kernel takes in: doors to most of its holes of the last years": {
        "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "seccomp": (317, 277),
        "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
        "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    },
    "other processes: their memory and descriptors": {
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
        "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
        "migrate_pages": (256, 238), "move_pages": (279, 239),
    },
    "namespaces and mounts, in which a program would have rights": {
        "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
        "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
        "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    },
    "memory that no limit counts, and that stays": {
        "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "semget": (64, 190),
        "memfd_secret": (447, 447),
    },
    "the machine: modules, kernels, clocks, swap, logs, quotas": {
        "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
        "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
        "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
        "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
        "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58), "personality": (135, 92),
        "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
        "ustat": (136, None), "sysfs": (139, None), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
    },
    "files by other ways than their names": {
        "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    },
}  # fmt: skip
"""Why -> name -> numbers on the machines of `ARCHITECTURES`, in their order."""

_CLONE, _CLONE3, _SOCKET = (56, 220), 435, (41, 198)
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* of <linux/sched.h> that clone(2) takes
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""Sockets that can be made. Of others a network namespace may hold nothing: AF_VSOCK reaches the host of a machine."""

# <linux/bpf_common.h>, <linux/seccomp.h>
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; of the argument its low half
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _FILTER = 22, 2


def machine() -> str | None:
    """This process's machine, if its numbers are known."""
    name = os.uname().machine
    return name if name in ARCHITECTURES and struct.calcsize("P") == 8 else None


def available() -> bool:
    """Whether this kernel takes the filter: tried in a child, since it is for good."""
    if machine() is None:
        return False
    child = os.fork()
    if child == 0:
        try:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            restrict()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def restrict() -> None:
    """Puts the filter on this process, and all it will start; it must have no_new_privs.

    Raises:
      OSError: the kernel refuses.
    """
    name = machine()
    assert name is not None
    instructions = program(name)
    filled = ctypes.create_string_buffer(instructions, len(instructions))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(instructions) // 8, ctypes.addressof(filled)))
    linux.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(head))


def program(name: str) -> bytes:
    """The filter of a machine, as classic BPF: EPERM for what is forbidden, ENOSYS for what is not to be there."""
    column = list(ARCHITECTURES).index(name)
    forbidden = [numbers[column] for calls in FORBIDDEN.values() for numbers in calls.values()]
    tests: list[tuple[int, int, str]] = [
        (_LOAD, _ARCHITECTURE, ""),
        (_EQUAL, ARCHITECTURES[name], "else absent"),
        (_LOAD, _NUMBER, ""),
        (_AT_LEAST, NEWEST + 1, "absent"),  # x32, whose numbers have bit 30 set, too
        (_EQUAL, _CLONE3, "absent"),  # its flags lie where no filter can look: C libraries then take clone
        *((_EQUAL, number, "forbidden") for number in sorted(filter(None, forbidden))),
        (_EQUAL, _CLONE[column], "clone"),
        (_EQUAL, _SOCKET[column], "socket"),
        (_RETURN, _ALLOW, ""),
    ]
    places = {"clone": len(tests)}
    tests += [(_LOAD, _FIRST_ARGUMENT, ""), (_ANY_BIT, _NEW_NAMESPACES, "forbidden"), (_RETURN, _ALLOW, "")]
    places["socket"] = len(tests)
    tests += [(_LOAD, _FIRST_ARGUMENT, ""), *((_EQUAL, family, "allowed") for family in FAMILIES.values())]
    for place, code in (
        ("no family", errno.EAFNOSUPPORT), ("forbidden", errno.EPERM), ("absent", errno.ENOSYS), ("allowed", None)
    ):  # fmt: skip
        places[place] = len(tests)
        tests.append((_RETURN, _ALLOW if code is None else _ERROR | code, ""))
    return b"".join(_instruction(index, *test, places) for index, test in enumerate(tests))


def _instruction(index: int, operation: int, value: int, target: str, places: dict[str, int]) -> bytes:
    """A struct sock_filter; jumps count from the next instruction."""
    jump = places[target.removeprefix("else ")] - index - 1 if target else 0
    yes, no = (0, jump) if target.startswith("else ") else (jump, 0)
    return struct.pack("=HBBI", operation, yes, no, value)
