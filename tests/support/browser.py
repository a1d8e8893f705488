"""A real Chromium without a window, spoken to over two pipes (Chrome DevTools Protocol): it ends when the pipes close."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ANSWER_WITHIN_SECONDS = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
_START = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)

Event = dict[str, Any]


class Page:
    """One tab; what it did is kept in `events`."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._rest, self._number = reader, writer, b"", 0
        self.events: list[Event] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    _session: str | None = None

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> Event:
        deadline = time.monotonic() + ANSWER_WITHIN_SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._reader, 1 << 16) if ready else b""
            assert chunk, "the browser ended, or did not answer"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        event: Event = json.loads(message)
        return event

    def open(self, path: Path) -> None:
        """A local file, until it is loaded."""
        self.ask("Page.navigate", url=path.as_uri())
        self.until("Page.loadEventFired")

    def until(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What a script sees."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """The pointer rests there."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    @property
    def complaints(self) -> list[Event]:
        """Whatever a console would show."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in methods]

    @property
    def requests(self) -> list[str]:
        """Everything that the page asked for."""
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]


@contextmanager
def browsing(program: str, profile: Path) -> Iterator[Page]:
    """A browser with one empty page; gone with the block."""
    commands, answers = os.pipe(), os.pipe()
    command = [sys.executable, "-I", "-S", "-c", _START, str(commands[0]), str(answers[1]), program, *_FLAGS]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}"],
        pass_fds=(commands[0], answers[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(commands[0])
    os.close(answers[1])
    try:
        yield Page(answers[0], commands[1])
    finally:
        os.close(commands[1])
        os.close(answers[0])
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
