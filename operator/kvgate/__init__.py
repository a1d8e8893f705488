"""kvgate: admits vLLM deployments to Kubernetes by their KV-cache budget."""

__version__ = "0.1.0"

DOCS_URL = ""
"""Address at which docs/ of this copy of the repository is published, such as `https://git.example.org/team/kvgate/blob/main/docs`.

All links of reports and alerts begin with it; set it here, and run `make generate`. While it is empty nobody knows an address: links
lead to the repository that kvgate was installed from, else to the pages that are installed with it.
"""

REPOSITORY_URL = ""
"""Address of the files of this repository, such as `https://git.example.org/team/kvgate/blob/main`: pages of the site link there.

While it is empty, links of the site to files that are no pages are plain text.
"""

INSTALL = "pip install '.[{extras}]' in a checkout of kvgate"
"""How messages and pages say what to install for a feature, with its extras of `pyproject.toml`, separated by commas.

It names a folder, because the name `kvgate` on PyPI is not ours: whoever takes it decides what an install by that name runs.
"""

__all__ = ["BadInput", "check", "judge", "size", "sweep", "why"]
"""Names for programs in Python; the module of the functions is imported when one is first used. `__init__.pyi` has their types: modules
of the command line import this one, so that it can import none of them."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("kvgate.cli.in_python"), name)
