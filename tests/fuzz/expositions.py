"""A server's /metrics, cut, doubled, renamed or blown up anywhere: no figure that it did not report, and no text of it without an end."""

import random
from collections.abc import Callable, Sequence
from functools import cache

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics

from fleet.fake_vllm import Engine, EngineCollector, Replay
from kvgate.sources.engine_metrics import NotAnEngine, UnreadableMetrics, read_engine
from kvgate.vllm.metric_names import EngineReading

RELEASES = ("0.6.6", "0.8.5", "0.10.2", "0.20.0", "0.24.0", "0.33.0")
MAX_TROUBLE = 300
"""Characters of a trouble, which reaches status, events and logs."""
ODD = (
    b"NaN", b"+Inf", b"-1", b"1e400", b"0x10", b"1_0", b"\\", b'"', b"{", b"}", b",", b"=", b"\n", b"\r", b"\0", b"\xff\xfe", b"\xc3", b"#",
    b" ", b"x" * 70_000, b'{a="b"} 1 1', b"# EOF\n", "\u2028".encode(), b"9" * 30, b"vllm:", b"\x1f\x8b\x08",
)  # fmt: skip


@cache
def whole(release: str, engines: int, *, is_open: bool) -> bytes:
    """Return what a sound engine of this release answers."""
    registry = CollectorRegistry()
    engine = Engine(vllm_version=release, num_gpu_blocks=4096, block_size=16, data_parallel_size=engines)
    registry.register(EngineCollector(engine=engine, replay=Replay()))
    return open_metrics(registry) if is_open else generate_latest(registry)


def check_seed(seed: int) -> list[str]:
    """What is wrong with the reading of one exposition."""
    text, is_cut = case_of(seed)
    return violations(text, sound=text_of(seed) if is_cut else None)


def text_of(seed: int) -> bytes:
    chance = random.Random(seed)
    return whole(chance.choice(RELEASES), chance.choice((1, 2, 8)), is_open=chance.random() < 0.5)


def case_of(seed: int) -> tuple[bytes, bool]:
    """Return an exposition, and True where it is the beginning of a sound one."""
    text, chance = text_of(seed), random.Random(seed + 1)
    if chance.random() < 0.3:
        return text[: chance.randrange(len(text))], True
    for _ in range(chance.randint(1, 4)):
        text = chance.choice(MUTATIONS)(chance, text)
    return text, False


def written(seed: int) -> bytes:
    return case_of(seed)[0]


def violations(text: bytes, *, sound: bytes | None = None) -> list[str]:
    """`sound` is the answer that `text` is the first part of."""
    for is_open in (False, True):
        try:
            reading = read_engine(text, is_open_metrics=is_open)
        except (NotAnEngine, UnreadableMetrics) as error:
            told = str(error)
            if not (0 < len(told) <= MAX_TROUBLE and told.isprintable()):
                return [f"the trouble has {len(told)} characters, or some that are not printed"]
        else:
            return list(_wrong(reading, sound))
    return []


def _wrong(reading: EngineReading, sound: bytes | None) -> Sequence[str]:
    if not (0 < reading.num_gpu_blocks * reading.block_size <= 10**12):
        return [f"{reading.num_gpu_blocks} blocks of {reading.block_size} tokens"]
    if reading.usage_ratio is not None and not 0 <= reading.usage_ratio <= 1:
        return [f"a usage of {reading.usage_ratio}"]
    if sound is not None:
        real = read_engine(sound)
        if reading != real or reading.usage_ratio not in (None, real.usage_ratio):
            return [f"a part says {reading}, the whole {real}"]
    return []


def _spliced(chance: random.Random, text: bytes) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(ODD) + text[at + chance.randrange(12) :]


def _near_a_name(chance: random.Random, text: bytes) -> bytes:
    """Change something in a line that is read."""
    at = text.find(
        chance.choice((b"\nvllm:cache_config_info", b"cache_usage_perc{", b"num_gpu_blocks=", b"block_size="))
    )
    at += chance.randrange(60)
    return text[:at] + chance.choice(ODD) + text[at + chance.randrange(4) :]


def _lines_again(chance: random.Random, text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    line = chance.choice(lines or [b""])
    if chance.random() < 0.5:
        line = line.replace(b"4096", b"%d" % chance.randrange(10**6))
    return b"".join((*lines, line * chance.choice((1, 2, 9000))))


def _renamed(chance: random.Random, text: bytes) -> bytes:
    old = chance.choice(
        (b"vllm:", b"cache_config_info", b"num_gpu_blocks", b"block_size", b"engine", b"cache_usage_perc")
    )
    return text.replace(old, chance.choice((b"", b"vllm_", b"vLLM:", b"x", old + b"s")))


def _quoted(_: random.Random, text: bytes) -> bytes:
    return text.replace(b"\nvllm:cache_config_info{", b'\n{"vllm:cache_config_info",')


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _spliced,
    _near_a_name,
    _near_a_name,
    _lines_again,
    _renamed,
    _quoted,
)
