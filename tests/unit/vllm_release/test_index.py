"""A source distribution is fetched through pip's configuration, checked against the index's hash, and never built."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.package_index import ONLY_THIS_INDEX, Index, archive, package_index
from vllm_release import index
from vllm_release.source import NotRead, read_archive

Serve = Callable[..., Index]
SETUP = "from pathlib import Path\nPath('{marker}').touch()\n"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    for name, value in ONLY_THIS_INDEX.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as running:

        def start(files: dict[str, bytes], fragments: dict[str, str] | None = None) -> Index:
            found = running.enter_context(package_index(files, fragments))
            monkeypatch.setenv("PIP_INDEX_URL", found.url)
            return found

        yield start


def test_a_release_is_fetched_and_its_build_is_not_run(serve: Serve, tmp_path: Path) -> None:
    marker = tmp_path / "was-built"
    content = archive({"vllm-0.34.0/setup.py": SETUP.format(marker=marker), "vllm-0.34.0/vllm/a.py": "x = 1\n"})
    serve({"vllm-0.33.0.tar.gz": b"", "vllm-0.34.0.tar.gz": content, "vllm-0.34.0-py3-none-any.whl": b""})
    found = index.fetch("0.34.0", tmp_path / "cache")
    assert found.path.read_bytes() == content
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert read_archive("0.34.0", found.path).files == {"vllm/a.py": "x = 1\n"}
    assert not marker.exists()
    assert index.available_versions() == ("0.33.0", "0.34.0")


def test_what_is_in_the_cache_is_not_fetched_again(serve: Serve, tmp_path: Path) -> None:
    served = serve({"vllm-0.34.0.tar.gz": archive({"vllm-0.34.0/vllm/a.py": ""})})
    index.fetch("0.34.0", tmp_path)
    index.fetch("0.34.0", tmp_path)
    assert served.requested.count("/files/vllm-0.34.0.tar.gz") == 1


def test_content_of_another_hash_is_refused_and_not_kept(serve: Serve, tmp_path: Path) -> None:
    serve({"vllm-0.34.0.tar.gz": b"other"}, fragments={"vllm-0.34.0.tar.gz": f"#sha256={'0' * 64}"})
    with pytest.raises(index.NoSource, match="the index says 0000"):
        index.fetch("0.34.0", tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_index_without_hashes_is_refused(serve: Serve, tmp_path: Path) -> None:
    serve({"vllm-0.34.0.tar.gz": b"x"}, fragments={"vllm-0.34.0.tar.gz": ""})
    with pytest.raises(index.NoSource, match="states no sha256"):
        index.fetch("0.34.0", tmp_path)


def test_a_release_that_is_not_there_is_said_with_the_newest_that_are(serve: Serve, tmp_path: Path) -> None:
    serve({"vllm-0.33.0.tar.gz": b"", "vllm-0.34.0-py3-none-any.whl": b""})
    with pytest.raises(index.NoSource, match=r"no source distribution of vLLM 0\.34\.0; its newest are 0\.33\.0"):
        index.fetch("0.34.0", tmp_path)


def test_an_archive_is_read_without_being_unpacked(tmp_path: Path) -> None:
    """Files outside of the package, links and other kinds of files are passed over; nothing is written."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(
        archive({"vllm-1/vllm/a.py": "a", "../../evil.py": "b", "vllm-1/tests/c.py": "c", "vllm-1/vllm/d.cu": "d"})
    )
    assert read_archive("1.0.0", path).files == {"vllm/a.py": "a"}
    assert [each.name for each in tmp_path.iterdir()] == ["x.tar.gz"]


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(archive({"other-1/other/a.py": "a"}))
    with pytest.raises(NotRead, match="holds no Python file of vllm"):
        read_archive("1.0.0", path)
