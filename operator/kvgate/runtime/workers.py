"""Worker processes that judge beside a door's event loop: fair between tenants, within a time budget, replaced when they die.

A thread cannot be interrupted, and it would share the interpreter's lock with the event loop; a process can be killed. Workers are
forked from a server process that has read the catalogues already (`multiprocessing`'s forkserver), so a new one is there in
milliseconds and shares that memory.

A task is a generator: each result that it yields stands until the next one. When its time is over, the last one is the answer.
"""

import asyncio
import contextlib
import io
import logging
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
Steps = Callable[..., Iterator[T]]
"""A task: a function of a module, so that a worker can find it by its name."""

NICENESS = 5
"""Workers give way to the event loop, which must answer probes while they are busy."""
WAIT_FOR_START_SECONDS = 60.0
"""Seconds for the first worker, which waits until the catalogues are read; other pods may use the node's processors too."""
MAX_KNOWN_TENANTS = 1024
"""Tenants whose use of the workers is remembered while they ask for nothing."""
_HEADER = struct.Struct("!?Q")
"""Header of a message: true before a shared object, false before a task or a result; then the length of its pickle."""
_READY, _STEP, _DONE, _DONE_FOR_GOOD, _FAILED, _LOST = "ready", "step", "done", "done for good", "failed", "lost"
"""Kinds of a worker's messages; after the last three and `done for good` it ends or is ended."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a pool."""

    workers: int = 2
    """At least 2 keep one worker free of any single tenant."""
    budget_seconds: float = 2.0
    """Seconds from the start of a task to its end; then its worker is killed, and the last result stands."""
    max_waiting: int = 64
    """Tasks of one tenant that wait; the next one is turned away at once."""
    memory_bytes: int = 256 << 20
    """Address space that a worker may add to what it was forked with; beyond it its task is lost."""
    recycle_bytes: int = 64 << 20
    """Growth of a worker's resident memory after which a new one takes its place."""


class NoAnswer(Exception):
    """Base of why a task has no result; the messages are for people."""


class TurnedAway(NoAnswer):
    """Too many tasks of the tenant wait, or this one waited too long: later there may be room."""


class OutOfTime(NoAnswer):
    """The budget was over before the first result."""


class WorkerLost(NoAnswer):
    """The worker ended before the first result: killed for its memory, or by a defect."""


class TaskFailed(NoAnswer):
    """The task raised; the message is its traceback."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome(Generic[T]):
    """The last result of a task."""

    value: T
    is_final: bool = True
    """False: the task had not ended when its time was over."""
    is_lost: bool = False
    """The worker ended before the task did, most likely for lack of memory."""


@dataclass(kw_only=True, eq=False, slots=True)
class _Tenant:
    """One of those who share the workers."""

    waiting: "deque[asyncio.Future[_Worker]]" = field(default_factory=deque)
    running: int = 0
    used_seconds: float = 0.0
    """Seconds of workers on the pool's virtual clock: whoever used least is next."""


class Pool:
    """Worker processes for tasks of many tenants; `async with` starts and ends them."""

    def __init__(self, limits: Limits, *, preload: Sequence[str] = (), by_content: tuple[type, ...] = ()) -> None:
        """Modules to import before workers are forked, and types of which all answers share equal instances."""
        self._limits = limits
        self._preload = tuple(preload)
        self._by_content = by_content
        self._tenants: dict[Hashable, _Tenant] = {}
        self._free: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._clock_seconds = 0.0
        self._shared = _Shared()
        self._contents: WeakValueDictionary[bytes, object] = WeakValueDictionary()
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Return when every worker is ready; tasks may be given before."""
        self._is_open = True
        async with asyncio.timeout(WAIT_FOR_START_SECONDS):
            for _ in range(self._limits.workers):
                await self._add_worker()

    async def close(self) -> None:
        """End the workers, whatever they do."""
        self._is_open = False
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for tenant in self._tenants.values():
            while tenant.waiting:
                tenant.waiting.popleft().cancel()
        await asyncio.gather(*(worker.end() for worker in tuple(self._all)))

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the workers' processes, for measurements."""
        return tuple(worker.process_id for worker in self._all if worker.is_running)

    def share(self, value: object) -> None:
        """Send this object to each worker once, and not with every task that mentions it; it takes the last one's place."""
        if value is not self._shared.value:
            self._shared = _Shared(self._shared.number + 1, value)

    async def run(
        self, tenant: Hashable, steps: Steps[T], *arguments: object, wait_seconds: float | None = None
    ) -> Outcome[T]:
        """The last result of `steps(*arguments)`. Raises NoAnswer."""
        worker = await self._worker_for(tenant, wait_seconds)
        started = time.monotonic()
        try:
            return await worker.answer(steps, arguments, self._shared, self._limits.budget_seconds)
        finally:
            self._release(worker, tenant, time.monotonic() - started)

    async def _worker_for(self, name: Hashable, wait_seconds: float | None) -> "_Worker":
        tenant = self._tenant(name)
        if len(tenant.waiting) >= self._limits.max_waiting:
            raise TurnedAway(f"{len(tenant.waiting)} assessments of {name or 'this tenant'} wait already")
        turn: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        tenant.waiting.append(turn)
        self._assign()
        try:
            async with asyncio.timeout(wait_seconds):
                return await turn
        except TimeoutError:
            self._give_up(tenant, turn)
            raise TurnedAway(f"no worker had time for {name or 'this tenant'} within {wait_seconds:g} s") from None
        except asyncio.CancelledError:
            self._give_up(tenant, turn)
            raise

    def _tenant(self, name: Hashable) -> _Tenant:
        """Return the tenant; one that is new, or comes back, has no credit for the time in which it did nothing."""
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= MAX_KNOWN_TENANTS:
                self._forget_idle()
            tenant = self._tenants[name] = _Tenant()
        if not (tenant.waiting or tenant.running):
            tenant.used_seconds = max(tenant.used_seconds, self._clock_seconds)
        return tenant

    def _forget_idle(self) -> None:
        for name in [name for name, tenant in self._tenants.items() if not (tenant.waiting or tenant.running)]:
            del self._tenants[name]

    def _give_up(self, tenant: _Tenant, turn: "asyncio.Future[_Worker]") -> None:
        """A worker may have been assigned in the same moment: it goes to the next."""
        if turn.done() and not turn.cancelled():
            tenant.running -= 1
            self._free.append(turn.result())
            self._assign()
        elif turn in tenant.waiting:
            tenant.waiting.remove(turn)

    def _assign(self) -> None:
        """Free workers go to whoever used least; one tenant never has all of them."""
        most = max(1, self._limits.workers - 1)
        while self._free:
            asking = [tenant for tenant in self._tenants.values() if tenant.waiting and tenant.running < most]
            if not asking:
                return
            tenant = min(asking, key=lambda each: (each.used_seconds, each.running))
            turn = tenant.waiting.popleft()
            if not turn.done():
                self._clock_seconds = max(self._clock_seconds, tenant.used_seconds)
                tenant.running += 1
                turn.set_result(self._free.pop())

    def _release(self, worker: "_Worker", name: Hashable, seconds: float) -> None:
        tenant = self._tenants[name]
        tenant.running -= 1
        tenant.used_seconds += seconds
        if worker.is_usable:
            self._free.append(worker)
        else:
            task = asyncio.create_task(self._replace(worker))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)
        self._assign()

    async def _replace(self, worker: "_Worker") -> None:
        """A node without memory may refuse a new process for a while."""
        await worker.end()
        self._all.discard(worker)
        pause_seconds = 0.1
        while self._is_open:
            try:
                await self._add_worker()
            except (OSError, EOFError) as error:
                _log.error("no new worker: %s", error)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, 5.0)
            else:
                return

    async def _add_worker(self) -> None:
        worker = await _Worker.start(self._limits, self._preload, self._by_content, self._contents)
        self._all.add(worker)
        self._free.append(worker)
        self._assign()


class _Shared:
    """An object that both ends of a pipe have, under a number."""

    def __init__(self, number: int = 0, value: object = None) -> None:
        self.number = number
        self.value = value
        self.pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


class _Worker:
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
        """Number of the shared object that it was sent last."""
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
        """A process that has said that it is ready. Raises OSError or EOFError where none can be had."""
        ours, theirs = socket.socketpair()
        with contextlib.closing(theirs):
            try:
                process = await asyncio.to_thread(_forked, theirs, limits, preload, by_content)
                reader, writer = await asyncio.open_unix_connection(sock=ours)
            except BaseException:
                ours.close()
                raise
        worker = cls(process, reader, writer, contents)
        try:
            await worker._receive(_Shared())
        except BaseException:
            await worker.end()
            raise
        return worker

    async def answer(
        self, steps: Steps[T], arguments: tuple[object, ...], shared: _Shared, budget_seconds: float
    ) -> Outcome[T]:
        """One task; whatever disturbs it makes the worker unusable. Raises NoAnswer."""
        self.is_usable, last = False, []  # until it has answered
        try:
            async with asyncio.timeout(budget_seconds):
                await self._send(shared, _dumped((steps, arguments), shared.value)[0])
                while (message := await self._receive(shared))[0] == _STEP:
                    last = [message[1]]
        except TimeoutError:
            self._process.kill()
            if not last:
                raise OutOfTime(f"it took longer than {budget_seconds:g} s") from None
            return Outcome(value=last[0], is_final=False)
        except (EOFError, ConnectionError):
            message = (_LOST, "")
        kind, text = message
        self.is_usable = kind in (_DONE, _FAILED)
        if kind == _FAILED:
            raise TaskFailed(text)
        if not last:
            raise WorkerLost("the process that judged it ended, most likely for lack of memory")
        return Outcome(value=last[0], is_final=kind != _LOST, is_lost=kind == _LOST)

    async def _send(self, shared: _Shared, request: bytes) -> None:
        if self._knows != shared.number:
            self._writer.write(_HEADER.pack(True, len(shared.pickled)) + shared.pickled)  # noqa: FBT003 - of a struct
            self._knows = shared.number
        self._writer.write(_HEADER.pack(False, len(request)))  # noqa: FBT003 - of a struct
        self._writer.write(request)
        await self._writer.drain()

    async def _receive(self, shared: _Shared) -> tuple[str, Any]:
        """(kind, result or text). Raises EOFError where the process has ended."""
        try:
            _, size = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            message, contents = pickle.loads(await self._reader.readexactly(size))  # noqa: S301 - of our own process
        except asyncio.IncompleteReadError as error:
            raise EOFError from error
        known = {digest: self._known(digest, text) for digest, text in contents.items()}
        found: tuple[str, Any] = _Unpickler(message, shared.value, known).load()
        return found

    def _known(self, digest: bytes, text: bytes) -> object:
        """The object that other answers have too, if they have it."""
        found = self._contents.get(digest)
        if found is None:
            found = self._contents[digest] = pickle.loads(text)  # noqa: S301 - of our own process
        return found

    async def end(self) -> None:
        """At once: a worker holds nothing that must be saved."""
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
    """The shared object by a token, objects of some types by the digest of their content."""

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
    """A worker's life: tasks until the parent is gone, or until it has grown too much."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent ends us
    os.nice(NICENESS)
    most_resident = _memory_bytes()[1] + limits.recycle_bytes
    address_space = _memory_bytes()[0] + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    with pipe, pipe.makefile("rb") as requests:
        shared: object = None
        _tell(pipe, _READY, "", shared, by_content)
        while header := requests.read(_HEADER.size):
            is_shared, size = _HEADER.unpack(header)
            message = requests.read(size)
            if is_shared:
                shared = pickle.loads(message)  # noqa: S301 - of our own process
                continue
            kind, text = _run(pipe, message, shared, by_content)
            del message
            if kind == _DONE and _memory_bytes()[1] > most_resident:
                kind = _DONE_FOR_GOOD
            _tell(pipe, kind, text, shared, by_content)
            if kind in (_DONE_FOR_GOOD, _LOST):
                return


def _run(pipe: socket.socket, task: bytes, shared: object, by_content: tuple[type, ...]) -> tuple[str, str]:
    """(kind, text) of how it ended."""
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
    message = pickle.dumps(_dumped((kind, value), shared, by_content), pickle.HIGHEST_PROTOCOL)
    pipe.sendall(_HEADER.pack(False, len(message)) + message)  # noqa: FBT003 - of a struct


def _memory_bytes() -> tuple[int, int]:
    """(address space, resident) of this process."""
    total, resident, *_ = Path("/proc/self/statm").read_text().split()
    return int(total) * resource.getpagesize(), int(resident) * resource.getpagesize()
