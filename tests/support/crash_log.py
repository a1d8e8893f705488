"""What an engine prints that is refused its KV cache: the cause, then more traceback than the kubelet keeps as last words."""

PROMPT = "the nurse's password is swordfish"
SENTENCE = (
    "To serve at least one request with the model's max seq len (40960), 5.62 GiB KV cache is needed, which is larger than the "
    "available KV cache memory (3.5 GiB)."
)
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
_API_SERVER = "(APIServer pid=1) "
_FRAME = '  File "/opt/vllm/entrypoints/frame_{}.py", line {}, in call_number_{}'


def _traceback(prefix: str, frames: int) -> list[str]:
    return [
        f"{prefix}{line}" for i in range(frames) for line in (_FRAME.format(i, 10 * i, i), f"    call_number_{i + 1}()")
    ]


LOG = "\n".join([
    f"{_API_SERVER}INFO 11-21 12:00:00 [logger.py:44] Received request 1: prompt: '{PROMPT}, CUDA out of memory', params: x",
    f"(EngineCore pid=77) WARNING 11-21 12:00:01 [plugin.py:1] {PROMPT}",
    f"(EngineCore pid=77) ERROR 11-21 12:00:02 [core.py:1040] ValueError: {SENTENCE} Try increasing `gpu_memory_utilization`.",
    f"{_API_SERVER}Traceback (most recent call last):",
    *_traceback(_API_SERVER, 30),
    f"{_API_SERVER}{WRAPPER}",
]) + "\n"  # fmt: skip
LAST_WORDS = LOG[-2048:]
"""All that `FallbackToLogsOnError` keeps."""


def crashed(words: str = LAST_WORDS, *, run: str = "containerd://1", exit_code: int = 1) -> dict[str, object]:
    """`terminated` of a container's state."""
    return {"exitCode": exit_code, "reason": "Error", "message": words, "containerID": run}
