"""The rule whose starts may correct verdicts in a cluster: those of images that somebody trusts."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from kvgate.budget import Calibration, CalibrationScope, ObservedStart, Origin
from kvgate.text.patterns import pattern

_HUB = "docker.io"
_PATTERN = pattern(r"[a-z0-9._/:*?\[\]-]+")
"""Characters of a repository, and wildcards."""


def image_repository(image: str) -> str:
    """Return the repository of an image, with its registry as a container runtime writes it: `docker.io/vllm/vllm-openai`."""
    name = image.rpartition("://")[2].partition("@")[0]
    folder, slash, last = name.rpartition("/")
    name = f"{folder}{slash}{last.partition(':')[0]}"
    registry, slash, _ = name.partition("/")
    if not slash:
        return f"{_HUB}/library/{name}"
    if "." in registry or ":" in registry or registry == "localhost":
        return name.replace(f"index.{_HUB}/", f"{_HUB}/", 1) if registry == f"index.{_HUB}" else name
    return f"{_HUB}/{name}"


class Trust(Struct, frozen=True, kw_only=True):
    """The rule that decides which starts in a cluster may correct verdicts."""

    images: tuple[str, ...]
    """Repositories without tag, `*` for any part; as `image_repository` writes them."""
    scope: CalibrationScope = CalibrationScope.NAMESPACE

    @classmethod
    def of(cls, patterns: Iterable[str], scope: str) -> "Trust":
        """Read patterns; an empty one stands for no image. Raises ValueError that names the pattern and what is wrong with it."""
        images = []
        for given in filter(None, patterns):
            if "@" in given or ":" in given.rpartition("/")[2]:
                raise ValueError(
                    f"{given!r} names a tag or a digest; give the repository alone, such as vllm/vllm-openai"
                )
            if not _PATTERN.fullmatch(given):
                raise ValueError(
                    f"{given!r} is not a repository; give one such as vllm/vllm-openai or registry.example/team/*"
                )
            images.append(given if given.startswith("*") else image_repository(given))
        return cls(images=tuple(images), scope=CalibrationScope(scope))

    def distrust(self, declared: str, ran: str) -> str:
        """Return why a pod's start teaches nothing; empty where it may teach.

        Both the image in its spec and the one that the runtime reports must be trusted.
        """
        if not ran.rpartition("://")[2].partition("@")[1]:
            return f"the container runtime does not report which image ran (imageID {ran!r}): the start teaches nothing"
        for image in (declared, ran):
            if not self._allows(image):
                return f"image {image_repository(image)} is not among calibration.images: its starts teach nothing"
        return ""

    def calibration(self, starts: Iterable[ObservedStart]) -> Calibration:
        """Return the starts that verdicts may use; a start whose image is no longer trusted stays in the records unused."""
        return Calibration(starts=tuple(filter(self.teaches, starts)), scope=self.scope)

    def teaches(self, start: ObservedStart) -> bool:
        return start.origin is not Origin.POD or self._allows(start.image)

    def _allows(self, image: str) -> bool:
        repository = image_repository(image)
        return any(fnmatchcase(repository, pattern) for pattern in self.images)
