"""The calibration options, which are the same in both processes."""

import click
import pytest
from click.testing import CliRunner

from kvgate.budget.calibration import CalibrationScope
from kvgate.calibration.records import Trust
from kvgate.controller.command import controller
from kvgate.runtime.service import calibration_options
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
