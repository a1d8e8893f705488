"""Names are read as vLLM reads them, and refused before anything is requested."""

import pytest

from kvgate.checkpoint.not_fetched import Reason
from kvgate.fetching.checkpoint_names import CheckpointName, checkpoint_name, is_hub_name, name_and_revision
from kvgate.fetching.limits import CouldNotFetch
from support.tables import table


@pytest.mark.parametrize(
    ("name", "repository", "quantization", "file"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "", ""),
        ("gpt2", "gpt2", "", ""),
        ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "unsloth/Qwen3-0.6B-GGUF", "Q4_K_M", ""),
        ("unsloth/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf", "unsloth/Qwen3-0.6B-GGUF", "", "Qwen3-0.6B-Q4_K_M.gguf"),
        ("o/r/UD-Q2/a-00001-of-00002.gguf", "o/r", "", "UD-Q2/a-00001-of-00002.gguf"),
    ],
)
def test_the_forms_of_a_name(name: str, repository: str, quantization: str, file: str) -> None:
    """Repositories of an organisation or without one, a quantisation of GGUF, and a file of GGUF are names."""
    assert checkpoint_name(name) == CheckpointName(
        name=name, repository=repository, gguf_quantization=quantization, gguf_file=file
    )


@table(
    "name",
    [
        "", "/", "..", "../x", "a/../b", "/models/qwen", "./models", "~/x", "a/b/c", "a//b", "a/b/../c.gguf", "a/b//c.gguf", "a..b/c",
        "a--b/c", "a/b.git", "a/b\n", "a/b\x00", "a/b c", "a\\b", "https://huggingface.co/a/b", "s3://bucket/x", "a/b:", "a/b:Q4/K",
        "a/b?x=1",
        "a/b#c", "a/%2e%2e", "ä/b", "$MODEL", "{{ .Values.model }}", "x" * 200, "-a/b",
    ],
)  # fmt: skip
def test_no_name(name: str) -> None:
    """Paths, addresses, names that escape, and text that no hub has as a name are refused."""
    with pytest.raises(CouldNotFetch, match="is no name of a model on a hub") as caught:
        checkpoint_name(name)
    assert caught.value.reason is Reason.INVALID_NAME
    assert caught.value.message.isprintable()
    assert not is_hub_name(name)


@table("revision", ["../x", "a/../b", "a b", "a\nb", "-x", "a?b", "x" * 300, "a//b"])
def test_no_revision(revision: str) -> None:
    """A revision is a branch, a tag or a commit."""
    with pytest.raises(CouldNotFetch, match="is no revision of a/b"):
        checkpoint_name("a/b", revision)


def test_revisions() -> None:
    """The default branch counts where none is named; pull requests are branches with slashes."""
    assert checkpoint_name("a/b").revision == "main"
    assert checkpoint_name("a/b", "refs/pr/1").revision == "refs/pr/1"
    assert name_and_revision(" a/b@v1.0 ") == ("a/b", "v1.0")
    assert name_and_revision("a/b") == ("a/b", "")
