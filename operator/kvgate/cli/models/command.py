"""`kvgate models [FILTER]`, `kvgate models fetch` and `kvgate models lock`."""

import sys
from pathlib import Path
from typing import Any

import click

from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.published import Published
from kvgate.cli import listings
from kvgate.cli.completion import a_file
from kvgate.cli.exits import BadInput, Exit, replace_file
from kvgate.cli.help import Group
from kvgate.cli.known_models import DEFAULT_SECONDS, fetched_models
from kvgate.cli.terminal import show, show_error, show_lines

_FILE = click.Path(dir_okay=False, allow_dash=False, path_type=Path)
_SECONDS = click.option(
    "--fetch-seconds",
    metavar="N",
    type=click.IntRange(1, 3600),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="Seconds for all models together.",
)


@click.group(cls=Group)
def models() -> None:
    """List the models that are known, fetch others, and keep their facts in a file.

    `kvgate models FILTER` is `kvgate models list FILTER`.
    """


models.default = "list"
models.add_command(listings.models, "list")


@models.command(short_help="Fetch models from a hub, a folder or a bucket.")
@click.argument("names", nargs=-1, required=True, metavar="NAME[@REVISION]...")
@click.option(
    "--as", "other_name", metavar="NAME", help="Name under which manifests name the model, such as /models/my-own."
)
@click.option(
    "--into", metavar="FILE", type=_FILE, help="Add the models to a lock file, for --lock; create it if it is missing."
)
@_SECONDS
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or programs.",
)
def fetch(names: tuple[str, ...], other_name: str | None, into: Path | None, fetch_seconds: int, output: str) -> None:
    """Fetch what the publishers of models published: config.json, quantisation, and the names, dtypes and shapes of all tensors.

    NAME is a model on huggingface.co, or on the hub that HF_ENDPOINT names: org/name, org/name:Q4_K_M for a GGUF file, or a LoRA
    adapter. A folder is written with a slash before it: ./my-own. A folder in a bucket is s3://bucket/folder.

    HF_TOKEN, the token of `hf auth login`, HF_HUB_OFFLINE, HF_HUB_CACHE and proxies count as for huggingface_hub. Buckets are read
    with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, where they are set. Weights are not downloaded, and no
    code of a model is run.
    """
    from kvgate.cli.models.report import json_report, text_report

    if other_name is not None and len(names) > 1:
        raise click.UsageError("--as is for one model; fetch the others by themselves")
    answers = _answers(names, other_name, fetch_seconds)
    found = [each for each in answers if isinstance(each, Published)]
    missing = [each for each in answers if isinstance(each, NotFetched)]
    if into is not None:
        # entries of the same name are replaced
        from kvgate.checkpoint.published import by_name, lock_text
        from kvgate.cli.known_models import read_lock_file

        try:
            known = read_lock_file(into) if into.exists() else ()
        except BadInput as error:
            raise click.UsageError(f"--into {error}") from None
        replace_file(into, lock_text(by_name([*known, *found]).values()))
    if output == "json":
        show(json_report(found, missing))
    elif found:
        show_lines(*text_report(found))
    for each in missing:
        show_error(each.message, *(f"  {remedy}" for remedy in each.remedies))
    sys.exit(Exit.UNDECIDED if missing else Exit.FITS)


def _answers(names: tuple[str, ...], other_name: str | None, seconds: int) -> list[Published | NotFetched]:
    """Return what was found for each name, in their order."""
    from msgspec.structs import replace

    from kvgate.checkpoint.published import name_key
    from kvgate.cli.model_names import hub_name
    from kvgate.fetching.bucket import SCHEME, read_bucket
    from kvgate.fetching.folder import read_folder
    from kvgate.fetching.limits import Limits

    elsewhere = (".", "/", "~", SCHEME)
    keys = {name: name_key(*hub_name(name)) for name in names if not name.startswith(elsewhere)}
    found, missing = fetched_models(list(keys.values()), max_seconds=seconds, is_quiet=True) if keys else ({}, {})
    answers: list[Published | NotFetched] = []
    for name in dict.fromkeys(names):
        if name.startswith(SCHEME):
            answers.append(read_bucket(name, name=other_name or name, limits=Limits(max_seconds=seconds)))
        elif name not in keys:
            answers.append(read_folder(Path(name).expanduser(), name=other_name or name))
        else:
            answer: Published | NotFetched = found.get(keys[name]) or missing[keys[name]]
            renames = other_name is not None and isinstance(answer, Published)
            answers.append(replace(answer, name=other_name, revision="") if renames else answer)
    return answers


@models.command(short_help="Keep the facts of models in a file to commit.")
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=a_file)
@click.option(
    "-o", "--output", "file", metavar="FILE", type=_FILE,
    help="The file; default: the one that .kvgate.yaml names, else kvgate-models.json.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Keep models that the catalogue knows, too.")
@click.option("--update", is_flag=True, help="Fetch all models again; else those in the file keep their commits.")
@click.option(
    "--check", is_flag=True, help="Write nothing, and fail where the file is not what this command would write."
)
@click.option("--config", metavar="FILE", type=_FILE, help="Read this file instead of the nearest .kvgate.yaml.")
@_SECONDS
def lock(paths: tuple[str, ...], file: Path | None, **options: Any) -> None:
    """Write the facts of all models that the engines in PATH name, and that the catalogue does not know, into a file to commit.

    The models are those that an engine serves, drafts and adapters among them. With the file, `kvgate check` needs no network,
    and its verdicts are the same tomorrow. PATH is as for `kvgate check`; without any it is the folder in which you are. What no
    engine in PATH names leaves the file. `--check` requests nothing, unless --update is there.
    """
    from kvgate.cli.models.locking import locked

    try:
        sys.exit(locked(paths or (".",), file, **options))
    except BadInput as error:
        from kvgate.cli.reports.text import lines_of_bad_input

        show_error(*lines_of_bad_input(str(error), error))
    sys.exit(Exit.UNDECIDED)
