"""One worker process, at both ends of its pipe: the limits, the errors, the messages, and what runs in it.

Workers are forked from a server process that has read the catalogues already (`multiprocessing`'s forkserver), so a new one is ready in
milliseconds and shares that memory. A task is a generator: each result that it yields stands until the next one. When its time is over, the
last one is the answer.
"""

import asyncio
import contextlib
import io
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import struct
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import sha256
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct

T = TypeVar("T")
Steps = Callable[..., Iterator[T]]
"""A task: a function of a module, so that a worker can find it by its name."""

NICENESS = 5
"""Niceness of workers: they give way to the event loop, which must answer probes while they are busy."""
_LENGTH = struct.Struct("!Q")
"""Bytes of a message, before it: to a worker (the shared object where it is new, the task), from it (the result, what it contains)."""
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
"""Unit of the processor times in /proc."""
_READY, _STEP, _DONE, _DONE_FOR_GOOD, _FAILED, _LOST = "ready", "step", "done", "done for good", "failed", "lost"
"""Kinds of a worker's messages. After `done for good` and `lost` the worker ends."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of a pool."""

    workers: int = 2
    """With at least 2, one worker is always free of any single tenant."""
    budget_seconds: float = 2.0
    """Processor time of a task; after it the worker is killed, and the last result stands."""
    wall_seconds: float = 60.0
    """Longest time of a task, however little of a processor it got: on a busy or suspended machine no input is to blame."""
    max_waiting: int = 64
    """Tasks of one tenant that may wait; the next one is turned away at once."""
    memory_bytes: int = 256 << 20
    """Address space that a worker may add to what it was forked with; a task that needs more is lost."""
    recycle_bytes: int = 64 << 20
    """Growth of a worker's resident memory after which a new one takes its place."""


class NoAnswer(Exception):
    """The task has no result; the message, for people, says why."""


class OutOfTime(NoAnswer):
    """The budget of processor time was over before the first result."""


class TurnedAway(NoAnswer):
    """The machine had no time for the task, or too many of its tenant wait; a later try may succeed."""


class WorkerLost(NoAnswer):
    """The worker ended before the first result: killed for its memory, or by a defect."""


class TaskFailed(NoAnswer):
    """The task raised; the message is its traceback."""


class Outcome(Struct, Generic[T], frozen=True, kw_only=True):
    """The last result of a task."""

    value: T
    is_final: bool = True
    """False where the task had not ended when its time was over."""
    is_lost: bool = False
    """True where the worker ended before the task, most likely for lack of memory."""
    is_starved: bool = False
    """True where the task had not ended and had not used its processor time either: the machine was busy or suspended."""


class Shared:
    """An object that both ends of a pipe know by a number."""

    def __init__(self, number: int = 0, value: object = None) -> None:
        self.number = number
        self.value = value
        self.pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


class Worker:
    """The parent's end of one process."""

    def __init__(
        self,
        process: ForkServerProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        contents: "WeakValueDictionary[bytes, object]",
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._contents = contents
        self._knows = 0
        """Number of the shared object that was sent to it last."""
        self.is_usable = True

    @property
    def process_id(self) -> int:
        return self._process.pid or 0

    @property
    def is_running(self) -> bool:
        return not self._writer.is_closing()

    @classmethod
    async def start(
        cls,
        limits: Limits,
        preload: tuple[str, ...],
        by_content: tuple[type, ...],
        contents: "WeakValueDictionary[bytes, object]",
    ) -> Self:
        """Start a process and return it when it is ready. Raises OSError or EOFError where none can be started."""
        ours, theirs = socket.socketpair()
        async with contextlib.AsyncExitStack() as where_it_fails:
            where_it_fails.callback(ours.close)
            with contextlib.closing(theirs):
                process = await asyncio.to_thread(_forked, theirs, limits, preload, by_content)
                worker = cls(process, *await asyncio.open_unix_connection(sock=ours), contents)
            where_it_fails.push_async_callback(worker.end)
            await worker._receive(Shared())
            where_it_fails.pop_all()
        return worker

    async def answer(
        self, steps: Steps[T], arguments: tuple[object, ...], shared: Shared, limits: Limits
    ) -> Outcome[T]:
        """Run one task; whatever disturbs it makes the worker unusable. Raises NoAnswer."""
        self.is_usable, last = False, []  # until it has answered
        ends_at_cpu_seconds = self._cpu_seconds() + limits.budget_seconds
        try:
            async with self._within(ends_at_cpu_seconds, limits.wall_seconds):
                task, _ = _dumped((steps, arguments), shared.value)
                self._writer.write(_framed((None if self._knows == shared.number else shared.pickled, task)))
                self._knows = shared.number
                await self._writer.drain()
                while (message := await self._receive(shared))[0] == _STEP:
                    last = [message[1]]
        except TimeoutError:
            is_starved = self._cpu_seconds() < ends_at_cpu_seconds
            self._process.kill()
            if last:
                return Outcome(value=last[0], is_final=False, is_starved=is_starved)
            if is_starved:
                raise TurnedAway(f"the machine was too busy for it for {limits.wall_seconds:g} s") from None
            raise OutOfTime(f"it took longer than {limits.budget_seconds:g} s of processor time") from None
        except (EOFError, ConnectionError):
            message = (_LOST, "")
        kind, text = message
        self.is_usable = kind in (_DONE, _FAILED)
        if kind == _FAILED:
            raise TaskFailed(text)
        if not last:
            raise WorkerLost("the process that judged it ended, most likely for lack of memory")
        return Outcome(value=last[0], is_final=kind != _LOST, is_lost=kind == _LOST)

    @contextlib.asynccontextmanager
    async def _within(self, ends_at_cpu_seconds: float, wall_seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError when the process has used so much processor time, or when so much time has passed."""
        loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
        async with asyncio.timeout(wall_seconds) as limit:

            def look() -> None:
                if (left := ends_at_cpu_seconds - self._cpu_seconds()) <= 0:
                    limit.reschedule(loop.time())
                else:
                    timers[:] = [loop.call_later(max(left, _TICK_SECONDS), look)]

            look()
            try:
                yield
            finally:
                for timer in timers:
                    timer.cancel()

    def _cpu_seconds(self) -> float:
        """Return the processor time of the process since its start; 0 when it is gone, which its pipe tells."""
        try:
            user, system = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            return 0.0
        return (int(user) + int(system)) * _TICK_SECONDS

    async def _receive(self, shared: Shared) -> tuple[str, Any]:
        """Receive (kind, result or text). Raises EOFError where the process has ended."""
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message, contents = pickle.loads(await self._reader.readexactly(size))  # noqa: S301 - of our own process
        except asyncio.IncompleteReadError as error:
            raise EOFError from error
        known: dict[bytes, object] = {}  # objects that other answers have too are shared with those
        for digest, text in contents.items():
            known[digest] = self._contents.get(digest) or pickle.loads(text)  # noqa: S301 - of our own process
            self._contents[digest] = known[digest]
        found: tuple[str, Any] = _Unpickler(message, shared.value, known).load()
        return found

    async def end(self) -> None:
        """End the process at once; it holds nothing that must be saved."""
        self.is_usable = False
        self._process.kill()
        self._writer.close()
        await asyncio.to_thread(self._process.join, 5)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _forked(
    theirs: socket.socket, limits: Limits, preload: tuple[str, ...], by_content: tuple[type, ...]
) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    process = context.Process(target=_serve, args=(theirs, limits, by_content), daemon=True)
    process.start()
    return process


class _Pickler(pickle.Pickler):
    """Writes the shared object as a token, and objects of some types as the digest of their content."""

    def __init__(self, file: io.BytesIO, shared: object, by_content: tuple[type, ...]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared
        self._by_content = by_content
        self.contents: dict[bytes, bytes] = {}

    def persistent_id(self, value: object) -> bytes | None:
        if self._shared is not None and value is self._shared:
            return b""
        if not isinstance(value, self._by_content):
            return None
        text = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        digest = sha256(text).digest()
        self.contents[digest] = text
        return digest


class _Unpickler(pickle.Unpickler):
    def __init__(self, message: bytes, shared: object, contents: dict[bytes, object]) -> None:
        super().__init__(io.BytesIO(message))
        self._shared = shared
        self._contents = contents

    def persistent_load(self, token: bytes) -> object:
        return self._contents[token] if token else self._shared


def _dumped(value: object, shared: object, by_content: tuple[type, ...] = ()) -> tuple[bytes, dict[bytes, bytes]]:
    file = io.BytesIO()
    pickler = _Pickler(file, shared, by_content)
    pickler.dump(value)
    return file.getvalue(), pickler.contents


def _serve(pipe: socket.socket, limits: Limits, by_content: tuple[type, ...]) -> None:
    """Run tasks in a worker until the parent is gone, or until the worker has grown too much."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent ends us
    os.nice(NICENESS)
    most_resident = _memory_bytes()[1] + limits.recycle_bytes
    address_space = _memory_bytes()[0] + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    with pipe, pipe.makefile("rb") as requests:
        shared: object = None
        _tell(pipe, _READY, "", shared, by_content)
        while header := requests.read(_LENGTH.size):
            new, task = pickle.loads(requests.read(*_LENGTH.unpack(header)))  # noqa: S301 - of our own process
            if new is not None:
                shared = pickle.loads(new)  # noqa: S301 - of our own process
            del new
            kind, text = _run(pipe, task, shared, by_content)
            del task
            if kind == _DONE and _memory_bytes()[1] > most_resident:
                kind = _DONE_FOR_GOOD
            _tell(pipe, kind, text, shared, by_content)
            if kind in (_DONE_FOR_GOOD, _LOST):
                return


def _run(pipe: socket.socket, task: bytes, shared: object, by_content: tuple[type, ...]) -> tuple[str, str]:
    """Run a task and return (kind, text) of its end."""
    try:
        steps, arguments = _Unpickler(task, shared, {}).load()
        for value in steps(*arguments):
            _tell(pipe, _STEP, value, shared, by_content)
    except MemoryError:
        return _LOST, ""
    except Exception:  # noqa: BLE001 - the parent must learn of whatever it is
        return _FAILED, traceback.format_exc()
    return _DONE, ""


def _tell(pipe: socket.socket, kind: str, value: object, shared: object, by_content: tuple[type, ...]) -> None:
    pipe.sendall(_framed(_dumped((kind, value), shared, by_content)))


def _framed(message: tuple[object, object]) -> bytes:
    text = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(text)) + text


def _memory_bytes() -> tuple[int, int]:
    """Return the address space and the resident memory of this process."""
    total, resident, *_ = Path("/proc/self/statm").read_text().split()
    return int(total) * resource.getpagesize(), int(resident) * resource.getpagesize()
