"""The options that are the same in both processes: those of calibration, and those of the push of metrics."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from kvgate import INSTALL
from kvgate.budget.observed.calibration import CalibrationScope
from kvgate.calibration.trust import Trust
from kvgate.controller.command import controller
from kvgate.runtime import service
from kvgate.runtime.service import OtlpOptions, calibration_options, otlp_options
from kvgate.webhook.command import webhook

OWN = ("vllm/vllm-openai", "vllm/vllm-openai-rocm")


def trusted(*arguments: str) -> Trust:
    found: list[Trust] = []

    @click.command()
    @calibration_options(OWN)
    def command(trust: Trust) -> None:
        found.append(trust)

    assert CliRunner().invoke(command, arguments).exit_code == 0
    return found[0]


def test_by_default_the_given_images_correct_their_own_namespace() -> None:
    assert trusted() == Trust.of(OWN, CalibrationScope.NAMESPACE)


def test_images_replace_the_default_and_the_scope_may_be_the_cluster() -> None:
    found = trusted("--calibration-image=a/b", "--calibration-image=c/*", "--calibration-scope=Cluster")
    assert found == Trust.of(("a/b", "c/*"), CalibrationScope.CLUSTER)


def test_an_empty_image_trusts_none() -> None:
    assert trusted("--calibration-image=").images == ()


@pytest.mark.parametrize("command", [controller, webhook])
def test_an_image_with_a_tag_is_refused_by_name(command: click.Command) -> None:
    needed = [f"{option.opts[0]}=x" for option in command.params if option.required]
    answer = CliRunner().invoke(command, [*needed, "--calibration-image=vllm/vllm-openai:v0.33.0"])
    assert answer.exit_code == 2
    assert "Invalid value for --calibration-image: 'vllm/vllm-openai:v0.33.0' names a tag or a digest" in answer.output


@pytest.mark.parametrize("command", [controller, webhook])
def test_both_processes_have_the_same_options(command: click.Command) -> None:
    own = {option.name: option for option in command.params}
    images, scope = own["calibration_images"], own["calibration_scope"]
    assert isinstance(images, click.Option)
    assert isinstance(scope, click.Option)
    assert images.default == OWN
    assert scope.default == "Namespace"


def pushed(*arguments: str) -> OtlpOptions | None:
    found: list[OtlpOptions | None] = []

    @click.command()
    @otlp_options
    def command(otlp: OtlpOptions | None) -> None:
        found.append(otlp)

    answer = CliRunner().invoke(command, arguments)
    assert answer.exit_code == 0, answer.output
    return found[0]


def test_nothing_is_pushed_unless_an_endpoint_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")  # an injector sets it in every pod
    assert pushed() is None
    assert pushed("--otlp-seconds=5") is None


@pytest.mark.parametrize("endpoint", ["http://collector:4318", "https://[::1]:4318/otlp", "https://otlp.example.org"])
def test_an_endpoint_is_taken_as_it_is(endpoint: str) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otlp` is not installed")
    assert pushed(f"--otlp-endpoint={endpoint}") == OtlpOptions(endpoint=endpoint, interval_seconds=60)


@pytest.mark.parametrize("command", [controller, webhook])
@pytest.mark.parametrize(
    "endpoint",
    ["collector:4318", "grpc://collector:4317", "http://user:secret@collector", "http://collector/?key=1", ""],
)
def test_what_is_no_address_is_refused_with_an_example(command: click.Command, endpoint: str) -> None:
    needed = [f"{option.opts[0]}=x" for option in command.params if option.required]
    answer = CliRunner().invoke(command, [*needed, f"--otlp-endpoint={endpoint}"])
    assert answer.exit_code == 2
    assert "Invalid value for --otlp-endpoint" in answer.output
    assert "give one such as http://collector:4318" in answer.output


def test_without_the_extra_the_answer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(service, "find_spec", missing)
    needed = [f"{option.opts[0]}=x" for option in webhook.params if option.required]
    answer = CliRunner().invoke(webhook, [*needed, "--otlp-endpoint=http://collector:4318"])
    assert answer.exit_code == 2
    assert INSTALL.format(extras="otlp") in answer.output


@pytest.mark.slow
def test_the_processes_load_opentelemetry_only_where_it_is_used() -> None:
    code = "import sys, kvgate.controller.command, kvgate.webhook.command; print('opentelemetry' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
