"""The release of vLLM that an image has, by its name."""

import pytest

from kvgate.budget.releases.versions import parse_patch
from kvgate.vllm.images import Strength, _read, _rows, is_own_image, release_of_image, with_short_variables
from kvgate.vllm.options import releases_read
from support.tables import table


@table(
    ("image", "releases"),
    [
        ("rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909", ("0.10.1", "0.10.1")),
        ("rocm/vllm:rocm6.3.1_instinct_vllm0.8.3_20250415", ("0.8.3", "0.8.3")),
        ("docker.io/vllm/vllm-openai:v0.9.0.1", ("0.9.0.1", "0.9.0.1")),
        ("vllm/vllm-openai-cpu:v0.23.0@sha256:89e1", ("0.23.0", "0.23.0")),
        ("quay.io/ascend/vllm-omni:v0.20.0", ("0.20.0", "0.20.0")),
        ("ghcr.io/volcano-sh/vllm-openai:v0.10.0-cu128-nixl-v0.4.1-lmcache-0.3.2", ("0.10.0", "0.10.0")),
        ("fra.ocir.io/x/official-vllm-openai:v0.7.3.78f0810ef", ("0.7.3", "0.7.3")),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0.post1", ("0.11.0", "0.11.0")),
        ("mirror:5000/ai-dynamo/vllm-runtime:1.2.1-cuda13", ("0.20.1", "0.20.1")),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.2.0-deepseek-v4-dev.2", ("0.20.0", "0.20.0")),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:my-tag", (None, None)),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.50.0", (None, None)),
        ("ghcr.io/llm-d/llm-d-cuda:v0.9.0", ("0.26.0", "0.26.0")),
        ("ghcr.io/llm-d/llm-d-cuda:v0.6.0", ("0.15.1", "0.19.1")),
        ("nvcr.io/nvidia/vllm:25.10-py3", ("0.10.2", "0.10.2")),
        ("nvcr.io/nvidia/vllm:26.05.post1-py3", ("0.20.1", "0.20.1")),
        ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.5-1766067105", ("0.11.2", "0.11.2")),
        ("quay.io/modh/vllm:rhoai-2.25-cuda", ("0.10.1.1", "0.10.1.1")),
        ("kserve/huggingfaceserver:v0.15.2-gpu", ("0.8.5", "0.8.5")),
        ("kserve/huggingfaceserver:v0.15.0-gpu", ("0.8.1", "0.8.5")),
        ("nvcr.io/nim/meta/llama-3.1-8b-instruct:2.0.9", ("0.25.1", "0.25.1")),
        ("lmcache/vllm-openai:v0.4.2", ("0.17.1", "0.18.0")),
        ("lmcache/vllm-openai:v0.3.14-lightweight", ("0.15.1", "0.16.0")),
        ("vllm/vllm-openai:nightly_main_20250821", ("0.10.1", "0.10.2")),
        ("vllm/vllm-openai:nightly-2019-01-01", (None, None)),
        ("vllm/vllm-openai:2049-01-01", (releases_read()[-1], releases_read()[-1])),
        ("team/llm:v0.11.0", (None, None)),
        ("team/vllm-serving:v0.11.0", ("0.11.0", "0.11.0")),
        ("team/vllm-serving:v0.11.7", (None, None)),
        ("quay.io/rh-aiservices-bu/vllm-openai-ubi9:0.4.2", ("0.4.2", "0.4.2")),
        ("", (None, None)),
    ],
)  # fmt: skip
def test_the_oldest_and_the_newest_release(image: str, releases: tuple[str | None, str | None]) -> None:
    found = release_of_image(image)
    assert (found.oldest, found.newest) == releases
    assert found.reason


NEWEST = releases_read()[-1]


@table(
    ("image", "strength", "oldest", "newest"),
    [
        ("vllm/vllm-openai:v0.11.0", Strength.STRONG, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:v0.11.0-x86_64", Strength.STRONG, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:v0.30.0-cu130-ubuntu2404", Strength.STRONG, "0.30.0", "0.30.0"),
        ("vllm/vllm-openai:v0.11.0@sha256:00", Strength.STRONG, "0.11.0", "0.11.0"),
        ("rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909", Strength.STRONG, "0.10.1", "0.10.1"),
        ("rocm/vllm:rocm6.3.1_instinct_vllm0.8.3_20250415", Strength.STRONG, "0.8.3", "0.8.3"),
        ("team/vllm:v0.9.0-vllm0.30.0", Strength.STRONG, "0.30.0", "0.30.0"),
        ("vllm/vllm-openai:cu129-v0.11.0", Strength.STRONG, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai-rocm:v0.11.0", Strength.STRONG, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai-cpu:vllm-v0.11.0", Strength.STRONG, "0.11.0", "0.11.0"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0", Strength.STRONG, "0.26.0", "0.26.0"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.2-cuda13", Strength.STRONG, "0.26.0", "0.26.0"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.2.0-deepseek-v4-dev.2", Strength.STRONG, "0.20.0", "0.20.0"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0-kimi-k3-dev.1", Strength.WEAK, "0.25.1", NEWEST),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0rc3", Strength.WEAK, "0.25.1", NEWEST),
        ("vllm/vllm-openai:v0.11.0-kimi-k3", Strength.WEAK, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:kimi-k3-v0.11.0", Strength.WEAK, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:pr-12345-v0.11.0", Strength.WEAK, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:nightly-v0.11.0", Strength.WEAK, "0.10.2", NEWEST),
        ("vllm/vllm-openai:dev_0.11.0", Strength.WEAK, "0.10.2", NEWEST),
        ("team/model-server:kimi-vllm0.11.0", Strength.WEAK, "0.11.0", "0.11.0"),
        ("team/vllm-openai-patched:v0.11.0", Strength.WEAK, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai${VARIANT}:v0.11.0", Strength.WEAK, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:v0.11.0-${ARCH}", Strength.WEAK, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:v0.11.0rc1", Strength.WEAK, "0.10.2", "0.11.0"),
        ("vllm/vllm-openai:v0.11.1.dev12", Strength.WEAK, "0.11.0", "0.11.1"),
        ("vllm/vllm-openai:v99.0.0rc1", Strength.WEAK, NEWEST, "99.0.0"),
        ("vllm/vllm-openai:nightly_main_20250821", Strength.WEAK, "0.10.1", "0.10.2"),
        ("team/vllm-serving:v0.11.0", Strength.WEAK, "0.11.0", "0.11.0"),
        ("vllm/vllm-openai:gemma4-0505-cu129", Strength.WEAK, None, None),
        ("vllm/vllm-openai@sha256:00", Strength.WEAK, None, None),
        ("vllm/vllm-openai:latest@sha256:00", Strength.WEAK, None, None),
        ("vllm/vllm-openai:${TAG:?such as v0.11.0}", Strength.WEAK, None, None),
        ("vllm/vllm-openai:${TAG:-v0.11.0}", Strength.WEAK, None, None),
        ("vllm/vllm-openai:v{{ .Values.version }}", Strength.WEAK, None, None),
        ("${IMAGE:?with a tag, as vllm/vllm-openai:v0.11.0}", Strength.WEAK, None, None),
        ("vllm/vllm-openai:latest", Strength.MOVING, None, None),
        ("vllm/vllm-openai:nightly", Strength.MOVING, None, None),
    ],
)  # fmt: skip
def test_evidence_has_a_strength(image: str, strength: Strength, oldest: str | None, newest: str | None) -> None:
    found = release_of_image(image)
    assert (found.strength, found.oldest, found.newest) == (strength, oldest, newest)


@pytest.mark.parametrize(
    ("image", "short"),
    [
        ("vllm/vllm-openai:${TAG:?such as a/b:c}", "vllm/vllm-openai:$TAG"),
        ("${REGISTRY:-ghcr.io/${ORG}}/vllm:$TAG", "$REGISTRY/vllm:$TAG"),
        ("$(IMAGE)@sha256:00", "$IMAGE@sha256:00"),
        ("{{ .Values.image.repository | default `a/b` }}:v1", "$.Values.image.repository:v1"),
        ("a/b:${", "a/b:${"),
        ("a/b:c", "a/b:c"),
    ],
)
def test_nothing_but_the_name_of_a_variable_stays(image: str, short: str) -> None:
    assert with_short_variables(image) == short


@table(
    ("tag", "is_newest", "is_ahead", "is_for_a_model"),
    [
        ("latest", True, False, False),
        ("latest-cu130", True, False, False),
        ("nightly", True, True, False),
        ("nightly-5b8c30d62b754b575e043ce2fc0dcbf8a64f6306", False, True, False),
        ("5b8c30d62b754b575e043ce2fc0dcbf8a64f6306", False, False, False),
        ("gemma4-0505-cu129", False, True, True),
        ("minimax-m3", False, True, True),
        ("v0.27.99999999999", False, False, False),
    ],
)
def test_tags_that_are_no_release(tag: str, *, is_newest: bool, is_ahead: bool, is_for_a_model: bool) -> None:
    found = release_of_image(f"vllm/vllm-openai:{tag}")
    assert (found.is_newest, found.is_ahead, found.is_for_a_model) == (is_newest, is_ahead, is_for_a_model)
    assert found.newest is None


@pytest.mark.parametrize(
    ("image", "is_own"),
    [
        ("vllm/vllm-openai", True),
        ("docker.io/vllm/vllm-openai@sha256:00", True),
        ("localhost:5000/vllm/vllm-openai", True),
        ("lmcache/vllm-openai:v0.4.2", False),
        ("myvllm/vllm-openai:v0.11.0", False),
    ],
)
def test_vllms_own_image(image: str, *, is_own: bool) -> None:
    assert is_own_image(image) is is_own


def test_every_row_is_a_release_or_a_range_with_a_source() -> None:
    for row in _rows():
        assert parse_patch(row.oldest) <= parse_patch(row.newest), row
        assert row.source


def test_every_release_that_was_read_has_its_day() -> None:
    """A new release is added to `vllm/data/release_days.csv` by hand."""
    days = {row["release"]: row["day"] for row in _read("release_days.csv")}
    assert set(releases_read()) <= days.keys()
    assert list(days.values()) == sorted(days.values())
    assert list(days) == sorted(days, key=parse_patch)
