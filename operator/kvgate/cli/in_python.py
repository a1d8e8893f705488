"""The commands as functions of Python: they take what the command line takes, and return its JSON as plain dictionaries.

`kvgate` exports them. Nothing is printed, nothing ends the process, and no command of another program's shell is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, Unpack

import click
import msgspec

from kvgate.cli.exits import BadInput
from kvgate.cli.python_options import CheckOptions, JudgeOptions, SizeOptions, SweepOptions, WhyOptions
from kvgate.findings.finding import vllm_name

Report = dict[str, Any]
Input = str | PathLike[str]
_Function = TypeVar("_Function", bound=Callable[..., Report])


def _takes(options: type) -> Callable[[_Function], _Function]:
    """Put the keys of a TypedDict into the signature that help() and editors show, in place of `**options`."""
    keys = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
        for name, kind in options.__annotations__.items()
    ]

    def shown(function: _Function) -> _Function:
        own = signature(function)
        others = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        found = Signature([*others, *keys], return_annotation=own.return_annotation)
        function.__signature__ = found  # type: ignore[attr-defined]  # inspect looks for it
        return function

    return shown


@_takes(JudgeOptions)
def judge(*, calibration: Path | None = None, lock: Path | None = None, **keys: Unpack[JudgeOptions]) -> Report:
    """Judge one engine: whether it starts, what it holds, and where the memory of a GPU goes.

    The keys are those of a line of `kvgate explain --requests`: `model` or `model_config` (a config.json as a dictionary), `gpu`,
    `vllm_version`, vLLM's settings under their names, `guarantee` and `workload`. `calibration` and `lock` are paths of the files that
    the options of these names read. Memory is in bytes, lengths are in tokens.

    Returns the answer to such a line, `id` and `error` among its keys. An engine that is not known is the verdict `Unknown`, with
    findings, and no exception. Raises BadInput with everything that is wrong with the request.
    """
    from kvgate.cli.assessment_json import request_answer
    from kvgate.cli.known_models import locked_models
    from kvgate.cli.shared_options import read_calibration
    from kvgate.cli.stated_workload import promise_of_request
    from kvgate.judgement.what_if import assess_request
    from kvgate.text.inert import inert_record

    request: dict[str, Any] = {**keys}
    identifier = request.get("id")
    with _as_bad_input():
        guarantee, workload = promise_of_request(request)
        starts, models = read_calibration(calibration), locked_models(lock)
        assessment = assess_request(
            request, guarantee=guarantee, workload=workload, calibration=starts, naming=vllm_name, models=models
        )
    return {"id": identifier, **msgspec.json.decode(inert_record(request_answer(assessment)))}


@_takes(SizeOptions)
def size(**options: Unpack[SizeOptions]) -> Report:
    """Find the GPUs for a model and its workload: how many, which parallelism, which settings; cheapest first.

    The keys are the long options of `kvgate size` with underscores: `model`, `gpus`, `prompt_tokens`, `output_tokens`, `peak_concurrency`,
    `max_gpus`, `all=True` … Memory is in bytes, lengths are in tokens, prices are per hour.

    Returns the report of `kvgate size -o json`. Raises BadInput with everything that is wrong with the options, and where the model is
    not known.
    """
    from kvgate.cli.size.command import searched
    from kvgate.cli.size.report import json_report

    with _as_bad_input(), _parsed("size", (), options) as values:
        return _loaded(json_report(*searched(values)[:2]))


@_takes(SweepOptions)
def sweep(**options: Unpack[SweepOptions]) -> Report:
    """Judge every pair of two settings, and find where memory runs out.

    The keys are the long options of `kvgate sweep` with underscores: `model`, `gpu`, `x="max_model_len=4K..40K+4K"`, `y`, `at` …

    Returns the report of `kvgate sweep -o json`. Raises BadInput as `size` does.
    """
    from kvgate.cli.gpu_names import on_one_gpu
    from kvgate.cli.known_models import ModelOptions
    from kvgate.cli.model_names import resolved
    from kvgate.cli.shared_options import given_settings
    from kvgate.cli.sweep.question import swept
    from kvgate.cli.sweep.report import json_report
    from kvgate.cli.workload_options import with_users

    with _as_bad_input(), _parsed("sweep", (), options) as values:
        about = ModelOptions.taken_from(values)
        settings, models = resolved(on_one_gpu(given_settings(with_users(values))), about)
        return _loaded(json_report(swept(settings, models=models)))


@_takes(CheckOptions)
def check(*paths: Input, **options: Unpack[CheckOptions]) -> Report:
    """Judge every vLLM engine in files and folders of manifests, Helm values, charts and kustomizations.

    The keys are the long options of `kvgate check` with underscores: `gpu`, `vllm_version`, `config`, `fail_on="unknown"`, `set=["a=b"]` …

    Returns the report of `kvgate check -o json`; `summary.exit_code` is 1 where an engine is refused. Raises BadInput for an option, a
    configuration or a baseline that cannot be used; its `problems` are the places.
    """
    from kvgate.cli.check.command import options_of
    from kvgate.cli.check.run import run
    from kvgate.cli.reports.json_report import render

    with _as_bad_input(), _parsed("check", paths, options) as values:
        if values.pop("config_from"):
            raise BadInput("config_from is for the command line: read the revision into a folder, and give its files")
        left = {name: value for name, value in values.items() if name not in ("write_baseline", "nothing_is_fine")}
        given = options_of(left.pop("paths"), left)
        return _loaded(render(run([fspath(path) for path in paths], given)))


@_takes(WhyOptions)
def why(*what: Input, **options: Unpack[WhyOptions]) -> Report:
    """Say why vLLM does not start, and what would change that.

    `what` are files, folders, or texts: a log, a command, manifests, what `kubectl describe` prints. The keys are the long options of
    `kvgate why` with underscores: `gpu`, `vllm_version`, `model_config` …

    Returns the report of `kvgate why -o json`. Raises BadInput where nothing in `what` can be read.
    """
    from kvgate.cli.why.run import run

    with _as_bad_input(), _parsed("why", (), options) as values:
        about = {name: value for name, value in values.items() if name not in ("what", "bundle")}
        return _loaded(run([fspath(each) for each in what], BytesIO(), about, bundle=None).json)


def _loaded(text: str) -> Report:
    report: Report = json.loads(text)
    return report


@contextmanager
def _parsed(command: str, arguments: Sequence[Input], options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of a command as its own parser reads them. Files are open and folders entered until the end."""
    from kvgate.cli.main import main

    root = click.Context(main, info_name="kvgate")
    found = main.get_command(root, command)
    if found is None:
        raise BadInput(f"kvgate {command} is no command")
    words = [word for name, value in options.items() for word in _words(f"--{name.replace('_', '-')}", value)]
    with found.make_context(command, [*words, "--", *(fspath(each) for each in arguments)], parent=root) as context:
        yield {name: value for name, value in context.params.items() if name not in ("output", "outputs")}


def _words(flag: str, value: Any) -> Iterator[str]:
    """Yield an option as a command line writes it; nothing for None."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _words(flag, each)
    elif isinstance(value, bool):
        yield flag if value else f"--no-{flag[2:]}"
    elif isinstance(value, Mapping):
        yield f"{flag}={json.dumps(value)}"
    elif value is not None:
        yield f"{flag}={value}"


@contextmanager
def _as_bad_input() -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except click.ClickException as error:
        raise BadInput(error.format_message()) from None
    except (ValueError, OSError) as error:
        raise BadInput(str(error)) from None
