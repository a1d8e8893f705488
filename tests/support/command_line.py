"""The command line inside this process, and a manifest with two mistakes for it."""

from click.testing import CliRunner, Result

from kvgate.cli.main import main

MISTAKEN_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: engine}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    args:
    - --model=Qwen/Qwen3-8B
    - --max-model-len=40960
    - --no-such-option
    resources: {limits: {nvidia.com/gpu: 1}}
"""


def invoked(*arguments: str, stdin: str | None = None) -> Result:
    """What it answered; an exit is an answer, any other exception is none."""
    result = CliRunner().invoke(main, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
