"""`make fuzz`: many cases in several processes, each from a seed of its own that is printed where it fails.

PYTHONPATH=tests .venv/bin/python -m fuzz --documents 250000 --reviews 15000 --configs 50000 --seed 7
PYTHONPATH=tests .venv/bin/python -m fuzz --replay documents:70000123
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from fuzz.cases import KINDS, Failure, failure_of

SEED = 20261122
SEEDS_PER_RUN = 10**7
"""Seeds of the cases of one run; the next run has others."""
MAX_CPU_SECONDS = 30.0
"""Of one case, which takes a hundredth of a second: beyond that it hangs."""
MAX_SECONDS = 600.0
"""Of one case on the busiest machine: a case that takes no CPU for so long waits for something."""
REPORT_SECONDS = 30.0
SHOWN_PER_SIGNATURE = 3

Case = tuple[str, int]


def main() -> None:
    options = _options()
    if options.replay:
        kind, _, seed = options.replay.partition(":")
        if options.write:
            options.write.write_bytes(KINDS[kind].written(int(seed)))
        failure = failure_of(kind, int(seed))
        sys.exit(failure.text() if failure else None)
    wanted = {kind: getattr(options, kind) for kind in KINDS}
    print(f"seed {options.seed}: " + ", ".join(f"{count} {kind}" for kind, count in wanted.items()), flush=True)
    started = time.monotonic()
    shares = [list(_cases(wanted, options.seed))[index :: options.processes] for index in range(options.processes)]
    failures = _run([_Worker(share) for share in shares if share])
    print(f"{sum(wanted.values())} cases in {time.monotonic() - started:.0f} s; {len(failures)} fail")
    sys.exit(1 if failures else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description="Hostile documents, reviews, model configs and metrics.")
    parser.add_argument("--documents", type=int, default=250_000)
    parser.add_argument("--reviews", type=int, default=15_000)
    parser.add_argument("--configs", type=int, default=50_000)
    parser.add_argument("--expositions", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", metavar="KIND:SEED", help="one case again, with its traceback")
    parser.add_argument("--write", metavar="FILE", type=Path, help="the input of --replay, to be cut down and kept")
    return parser.parse_args()


def _cases(wanted: dict[str, int], seed: int) -> Iterator[Case]:
    """Every case by kind and seed; a case of documents holds several."""
    for kind, count in wanted.items():
        first = seed * SEEDS_PER_RUN
        yield from ((kind, first + index) for index in range(-(-count // KINDS[kind].weight)))


class _Worker:
    """A process and what it is at; one that hangs is ended, and the next goes on behind the case that hung."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases
        self.done = 0
        self._start()

    def _start(self) -> None:
        self.connection, far = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.Process(target=_work, args=(self.cases[self.done :], far), daemon=True)
        self.process.start()
        far.close()
        self._answered()

    def _answered(self) -> None:
        self.since, self.used_seconds = time.monotonic(), _cpu_seconds(self.process.pid)

    def failures(self) -> Iterator[Failure]:
        """Those that came in since the last call."""
        try:
            while self.connection.poll(0.2 if not self.done else 0):
                answer: Failure | None = self.connection.recv()
                self.done += 1
                self._answered()
                if answer:
                    yield answer
        except EOFError:
            pass
        if self.is_over:
            return
        cpu_seconds, seconds = _cpu_seconds(self.process.pid) - self.used_seconds, time.monotonic() - self.since
        ended, hangs = not self.process.is_alive(), cpu_seconds > MAX_CPU_SECONDS or seconds > MAX_SECONDS
        if (ended and not self.connection.poll()) or hangs:
            kind, seed = self.cases[self.done]
            spent = f"{cpu_seconds:.0f} s of CPU in {seconds:.0f} s"
            what = f"hangs: {spent}" if hangs else f"ends the process ({self.process.exitcode})"
            yield Failure(kind=kind, seed=seed, problems=(what,))
            self.process.kill()
            self.process.join()
            self.done += 1
            if not self.is_over:
                self._start()

    @property
    def is_over(self) -> bool:
        return self.done >= len(self.cases)


def _cpu_seconds(pid: int | None) -> float:
    """Return the processor time of a process since its start; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _work(cases: list[Case], connection: Connection) -> None:
    for kind, seed in cases:
        connection.send(failure_of(kind, seed))
    connection.close()


def _run(workers: list[_Worker]) -> list[Failure]:
    failures: list[Failure] = []
    by_signature: dict[str, int] = {}
    reported = time.monotonic()
    while not all(worker.is_over for worker in workers):
        time.sleep(0.1)
        for failure in [failure for worker in workers for failure in worker.failures()]:
            failures.append(failure)
            seen = by_signature[failure.signature] = by_signature.get(failure.signature, 0) + 1
            if seen <= SHOWN_PER_SIGNATURE:
                print(failure.text(), flush=True)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            print(f"… {sum(w.done for w in workers)} cases, {len(failures)} fail", flush=True)
    for signature, count in sorted(by_signature.items(), key=lambda each: -each[1]):
        print(f"{count:6} × {signature}")
    return failures


if __name__ == "__main__":
    main()
