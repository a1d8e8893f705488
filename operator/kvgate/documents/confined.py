"""Program of its own that runs Helm or kustomize behind a wall of the Linux kernel: `confined.py WALL FOLDER PROGRAM NAME WORD…`.

The program sees FOLDER and its own file, both read-only, and no network; it can start no other program. A dynamically linked
program sees the system's libraries too. `confined.py probe FOLDER` prints the walls that stand on this system, the best first.

Standard library only: it is run by its path with `python -I -S`, and it imports nothing of kvgate. Interfaces of the kernel:
user_namespaces(7), mount_namespaces(7), pivot_root(2), landlock(7), seccomp(2), execveat(2).
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

NAMESPACES, LANDLOCK, NO_WALL = "namespaces", "landlock", "none"
SETUP_FAILED = 125
"""Exit code where the wall does not stand; the program has not been started then."""
MAX_MEMORY_BYTES = 4 << 30
"""Address space; what Helm and kustomize need for the largest charts is some hundred MiB."""
MAX_OUTPUT_BYTES = 32 << 20
MAX_CPU_SECONDS = 60
HOME = "home"
"""Name of an empty folder in FOLDER."""
_OUTSIDE = "/proc/self/status"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/etc/ld.so.cache")

_CALLS: dict[str, dict[str, Any]] = {
    "x86_64": {
        "architecture": 0xC000003E, "clone": 56, "execveat": 322, "pivot_root": 155,
        "refused": (41, 42, 53, 57, 58, 59, 101, 155, 161, 165, 166, 248, 249, 250, 272, 298, 304, 308, 310, 311, 321, 323),
    },
    "aarch64": {
        "architecture": 0xC00000B7, "clone": 220, "execveat": 281, "pivot_root": 41,
        "refused": (198, 203, 199, 221, 117, 41, 51, 40, 39, 217, 218, 219, 97, 241, 265, 268, 270, 271, 280, 282),
    },
}  # fmt: skip
"""Numbers of system calls (asm/unistd_64.h, asm-generic/unistd.h). Refused: socket, connect, socketpair, fork and vfork (x86-64 only),
execve, ptrace, pivot_root, chroot, mount, umount2, add_key, request_key, keyctl, unshare, perf_event_open, open_by_handle_at, setns,
process_vm_readv and _writev, bpf, userfaultfd."""
_IO_URING_SETUP, _CLONE3, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 425, 435, 444, 445, 446
_X32 = 0x40000000
"""Bit of the calls of x32, which are the same calls under other numbers."""
_NEW_USER, _NEW_MOUNTS, _NEW_NETWORK, _NEW_IPC, _NEW_UTS, _THREAD = 1 << 28, 1 << 17, 1 << 30, 1 << 27, 1 << 26, 1 << 16
_NOBODY = 65534
"""User and group inside the namespaces; only 0 would keep capabilities when the program starts."""
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    1 << 14,
    1 << 18,
)
_DETACH = 2
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38
_EMPTY_PATH = 0x1000
_EXECUTE, _READ_FILE, _READ_FOLDER = 1, 4, 8
_RIGHTS_TO_FILES = (13, 14, 15, 15, 16)
"""Number of rights that Landlock of version 1, 2, … can take away."""
_PERMISSION, _NO_SUCH_CALL = 1, 38
"""EPERM; ENOSYS, after which a library tries an older call."""

_libc = ctypes.CDLL(None, use_errno=True)
_calls = _CALLS.get(platform.machine(), {}) if sys.platform == "linux" else {}


def main(wall: str, folder: str, program: str = "", *words: str) -> None:
    if wall == "probe":
        print(*(each for each in (NAMESPACES, LANDLOCK) if _stands(each, folder)))
        return
    limits = (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, MAX_OUTPUT_BYTES),
        (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
    )
    for what, limit in limits:
        with suppress(OSError, ValueError):
            resource.setrlimit(what, (limit, limit))
    home = os.path.join(folder, HOME)  # noqa: PTH118 - importing pathlib takes longer than all the rest
    variables = {"HOME": home, "PATH": "", "LANG": "C.UTF-8"}
    if wall == NO_WALL:
        os.chdir(home)
        os.execve(program, words, variables)  # noqa: S606 - without a shell, on purpose
    descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    _put_up(wall, folder, program, descriptor)
    os.chdir(home)
    _refuse_calls()
    pairs = [f"{name}={value}" for name, value in variables.items()]
    _check(_libc.syscall(_calls["execveat"], descriptor, b"", _texts(words), _texts(pairs), _EMPTY_PATH))


def _stands(wall: str, folder: str) -> bool:
    """Return whether a process behind this wall is kept from a file that is there on every system."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        descriptor = os.open(sys.executable, os.O_RDONLY)
        _put_up(wall, folder, sys.executable, descriptor)
        _refuse_calls()
        with suppress(OSError):
            os.open(_OUTSIDE, os.O_RDONLY)
            os._exit(1)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the child must never go on as its parent
        os._exit(1)


def _put_up(wall: str, folder: str, program: str, descriptor: int) -> None:
    """Take away the files and the network. Raises OSError."""
    if not _calls:
        raise OSError(_NO_SUCH_CALL, f"no wall is known for {platform.machine()}")
    libraries = [each for each in (_LIBRARIES if _is_dynamic(descriptor) else ()) if os.path.exists(each)]  # noqa: PTH110
    if wall == NAMESPACES:
        _enter_namespaces(folder, program, libraries)
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if wall == LANDLOCK:
        _restrict_files(folder, program, libraries)


def _is_dynamic(descriptor: int) -> bool:
    """Return whether an ELF file of 64 bits names an interpreter (elf(5): a program header of type 3)."""
    start = os.pread(descriptor, 64, 0)
    place, size, count = struct.unpack_from("<Q", start, 32)[0], *struct.unpack_from("<HH", start, 54)
    return any(os.pread(descriptor, 4, place + size * index) == b"\3\0\0\0" for index in range(count))


def _enter_namespaces(folder: str, program: str, libraries: Sequence[str]) -> None:
    """Enter namespaces whose root has nothing but these paths, each at its own place, and whose network has no device that is up."""
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NETWORK | _NEW_IPC | _NEW_UTS))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_NOBODY} {user} 1"), ("gid_map", f"{_NOBODY} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
    root = os.path.join(folder, HOME)  # noqa: PTH118
    _mount("", "/", _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, _NO_SUID | _NO_DEVICES, kind="tmpfs", options="size=1m,mode=755")
    for source in (folder, program, *libraries):
        target = root + source
        os.makedirs(target if os.path.isdir(source) else os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH112, PTH120
        if not os.path.isdir(source):  # noqa: PTH112
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        _mount(source, target, _BIND)
        more = _NO_EXEC if source == folder else 0
        _mount("", target, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES | more)
    os.chdir(root)
    _check(_libc.syscall(_calls["pivot_root"], b".", b"."))
    _check(_libc.umount2(b".", _DETACH))
    _mount("", "/", _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES)


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    given = (each.encode() or None for each in (source, target, kind))
    _check(_libc.mount(*given, ctypes.c_ulong(flags), options.encode() or None))


def _restrict_files(folder: str, program: str, libraries: Sequence[str]) -> None:
    """Leave this process no right to any file but to read these, and to run the program."""
    version = _check(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
    handled = (1 << _RIGHTS_TO_FILES[min(version, len(_RIGHTS_TO_FILES)) - 1]) - 1
    rules = _check(_libc.syscall(_LANDLOCK_CREATE, struct.pack("Q", handled), ctypes.c_size_t(8), 0))
    rights = {folder: _READ_FILE | _READ_FOLDER, program: _READ_FILE | _EXECUTE}
    rights |= {each: _READ_FILE | _EXECUTE | (_READ_FOLDER if os.path.isdir(each) else 0) for each in libraries}  # noqa: PTH112
    for path, allowed in rights.items():
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _check(_libc.syscall(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", allowed, place), 0))
    _check(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def _refuse_calls() -> None:
    """Refuse system calls that open sockets, start processes or reach into others; the one way to a program is its open file."""
    steps = b"".join(struct.pack("HBBI", *each) for each in _filter())
    buffer = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HP", len(steps) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0))


def _filter() -> Iterator[tuple[int, int, int, int]]:
    """Yield the filter as (code, steps to jump if true, if false, constant): linux/bpf_common.h, struct seccomp_data."""
    load, equal, at_least, has_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allowed, refused, missing = 0x7FFF0000, 0x00050000 | _PERMISSION, 0x00050000 | _NO_SUCH_CALL
    number, architecture, first_argument, fifth_argument = 0, 4, 16, 48
    yield load, 0, 0, architecture
    yield equal, 1, 0, _calls["architecture"]
    yield answer, 0, 0, refused
    yield load, 0, 0, number
    yield at_least, 0, 1, _X32
    yield answer, 0, 0, refused
    for call, code in [*((each, refused) for each in (*_calls["refused"], _IO_URING_SETUP)), (_CLONE3, missing)]:
        yield equal, 0, 1, call
        yield answer, 0, 0, code
    for call, argument, test, bit in (
        (_calls["clone"], first_argument, has_bit, _THREAD),
        (_calls["execveat"], fifth_argument, equal, _EMPTY_PATH),
    ):
        yield equal, 0, 4, call
        yield load, 0, 0, argument
        yield test, 0, 1, bit
        yield answer, 0, 0, allowed
        yield answer, 0, 0, refused
    yield answer, 0, 0, allowed


def _texts(words: Sequence[str]) -> Any:
    return (ctypes.c_char_p * (len(words) + 1))(*(os.fsencode(word) for word in words), None)


def _check(result: int) -> int:
    """Return what a call of the C library answers. Raises OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        print(f"the sandbox of the kernel cannot be used: {error}", file=sys.stderr)
        sys.exit(SETUP_FAILED)
