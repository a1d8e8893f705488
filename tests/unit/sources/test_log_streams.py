"""Logs with the prefixes of whatever printed them, of several sources at once, and larger than memory."""

import json

import pytest

from kvgate.sources.log_streams import HEAD_BYTES, TAIL_BYTES, WHOLE_BYTES, LogReader, streams

LINES = (
    "(APIServer pid=1) INFO 11-02 03:04:05 [api_server.py:1] vLLM API server version 0.11.0",
    "(EngineCore_DP0 pid=9) ERROR 11-02 03:04:07 [core.py:2] ValueError: No available memory for the cache blocks.",
    "Traceback (most recent call last):",
    '  File "/vllm/x.py", line 1, in main',
)


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.split("\n"), 1))


def prefixed(prefix: str) -> str:
    return "\n".join(prefix + line for line in LINES)


@pytest.mark.parametrize(
    ("prefix", "source"),
    [
        ("", ""),
        ("2025-11-25T12:34:56.789012345Z ", ""),
        ("2025-11-25T12:34:56.789Z stderr F ", ""),
        ("[pod/vllm-0/vllm] ", "pod/vllm-0/vllm"),
        ("[pod/vllm-0/vllm] 2025-11-25T12:34:56.789012345Z ", "pod/vllm-0/vllm"),
        ("vllm-1  | ", "vllm-1"),
        ("Nov 25 12:34:56 node-1 vllm[123]: ", "vllm"),
        ("2025-11-25T12:34:56+00:00 node-1 vllm.service[7]: ", "vllm.service"),
        ("INFO 2025-11-19T20:16:36.096625454Z [resource.labels.containerName: vllm] ", "vllm"),
        ("> ", ""),
    ],
)
def test_the_prefix_of_a_program_is_taken_off(prefix: str, source: str) -> None:
    (found,) = streams(numbered(prefixed(prefix)))
    assert found.source == source
    assert found.text.split("\n") == list(LINES)


def test_colours_are_taken_off() -> None:
    (found,) = streams(numbered("\x1b[1;36m(APIServer pid=7)\x1b[0;0m INFO x\n\x1b[31mERROR\x1b[0m y"))
    assert found.text == "(APIServer pid=7) INFO x\nERROR y"


@pytest.mark.parametrize("key", ["log", "message", "msg", "MESSAGE", "textPayload"])
def test_lines_of_json_are_read(key: str) -> None:
    text = "\n".join(json.dumps({key: f"{line}\n", "time": "x", "pod": "vllm-0"}) for line in LINES)
    (found,) = streams(numbered(text))
    assert (found.source, found.text.split("\n")) == ("vllm-0", list(LINES))


def test_lines_of_several_pods_are_told_apart_and_keep_their_numbers() -> None:
    mixed = [f"[pod/vllm-{index % 2}/vllm] {line}" for line in LINES for index in range(2)]
    one, other = streams(numbered("\n".join(mixed)))
    assert one.text == other.text == "\n".join(LINES)
    position = one.text.index("No available memory")
    assert (one.number_at(position), other.number_at(position)) == (3, 4)


def test_a_text_without_a_prefix_keeps_words_that_look_like_one() -> None:
    text = "ValueError: x\n" * 5 + "vllm-1  | inner"
    (found,) = streams(numbered(text))
    assert found.text == text


def test_a_long_log_keeps_its_head_and_the_lines_that_may_tell_something_in_bounded_memory() -> None:
    reader = LogReader()
    reader.add((LINES[0] + "\n").encode())
    access = b'INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 10_000
    for _ in range(40):
        reader.add(access)
    reader.add(f"{LINES[1]}\n".encode())
    kept = list(reader.lines())
    assert reader.num_bytes > 5 * WHOLE_BYTES
    assert sum(len(line) for _, line in kept) < HEAD_BYTES + TAIL_BYTES
    assert kept[0] == (1, LINES[0])
    assert kept[-1] == (400_002, LINES[1])


def test_a_log_of_nothing_but_errors_is_cut_in_the_middle_and_counts_what_was_left_out() -> None:
    reader = LogReader()
    for _ in range(20):
        reader.add((LINES[1] + "\n").encode() * 10_000)
    assert reader.left_out > 0
    assert sum(len(line) + 1 for _, line in reader.lines()) <= HEAD_BYTES + TAIL_BYTES
