"""Images whose starts teach: the repository that is declared and the one that ran must both be trusted."""

import pytest

from kvgate.calibration.trust import Trust, image_repository
from support.starts import a_pods_start, a_start
from support.tables import table

IMAGES = [
    ("vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
    ("vllm/vllm-openai:v0.33.0", "docker.io/vllm/vllm-openai"),
    ("docker.io/vllm/vllm-openai@sha256:12", "docker.io/vllm/vllm-openai"),
    ("index.docker.io/vllm/vllm-openai:v1@sha256:12", "docker.io/vllm/vllm-openai"),
    ("docker-pullable://vllm/vllm-openai@sha256:12", "docker.io/vllm/vllm-openai"),
    ("vllm", "docker.io/library/vllm"),
    ("localhost/vllm", "localhost/vllm"),
    ("registry:5000/vllm/vllm-openai:v1", "registry:5000/vllm/vllm-openai"),
    ("quay.io/vllm/vllm-openai", "quay.io/vllm/vllm-openai"),
]


@pytest.mark.parametrize(("image", "repository"), IMAGES, ids=[image for image, _ in IMAGES])
def test_a_repository_is_named_as_the_runtime_names_it(image: str, repository: str) -> None:
    assert image_repository(image) == repository
    assert image_repository(repository) == repository


TRUST = Trust.of(["vllm/vllm-openai", "registry.example/team/*"], "Namespace")
RAN = "docker.io/vllm/vllm-openai@sha256:12"


@table(
    ("declared", "ran", "told"),
    [
        ("vllm/vllm-openai:v0.33.0", RAN, ""),
        ("registry.example/team/a/b:1", "registry.example/team/a/b@sha256:1", ""),
        ("vllm/vllm-openai-evil:v1", RAN, "image docker.io/vllm/vllm-openai-evil is not among calibration.images"),
        ("vllm/vllm-openai:v1", "docker.io/evil/vllm@sha256:1", "image docker.io/evil/vllm is not among"),
        ("docker.io.evil.example/vllm/vllm-openai", RAN, "docker.io.evil.example/vllm/vllm-openai is not among"),
        ("evil/docker.io/vllm/vllm-openai", RAN, "docker.io/evil/docker.io/vllm/vllm-openai is not among"),
        ("registry.example/teammate/x", RAN, "registry.example/teammate/x is not among"),
        ("vllm/vllm-openai:v1", "", "does not report which image ran"),
        ("vllm/vllm-openai:v1", "sha256:" + "1" * 64, "does not report which image ran"),
        ("", RAN, "is not among calibration.images"),
    ],
)
def test_only_what_was_declared_and_ran_from_a_trusted_repository_teaches(declared: str, ran: str, told: str) -> None:
    distrust = TRUST.distrust(declared, ran)
    assert (told in distrust) if told else distrust == ""


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("vllm/vllm-openai:v1", "names a tag or a digest"), ("a@sha256:1", "names a tag or a digest"),
        ("a b", "is not a repository"), ("Vllm/x", "is not a repository"),
    ],
)  # fmt: skip
def test_a_pattern_that_names_no_repository_is_an_error(pattern: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Trust.of([pattern], "Namespace")


def test_a_start_of_an_image_that_is_trusted_no_more_stays_and_teaches_nothing() -> None:
    trusted, other = a_pods_start(-0.5, "a"), a_pods_start(-0.5, "b", image="ghcr.io/x/y@sha256:1")
    assert TRUST.calibration((trusted, other, a_start())).starts == (trusted, a_start())
    assert Trust.of([""], "Namespace").calibration((trusted, a_start())).starts == (a_start(),)
    assert Trust.of(["*"], "Cluster").calibration((trusted, other)).starts == (trusted, other)
