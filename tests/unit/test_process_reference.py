"""The reference of the two processes is what their commands say today."""

import click
import pytest

from kvgate.controller.command import controller
from kvgate.webhook.command import webhook
from process_reference import TARGET, process_reference


def test_the_committed_reference_is_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == process_reference(), "run `make generate` and commit"


@pytest.mark.parametrize("command", [controller, webhook])
def test_every_option_stands_in_it(command: click.Command) -> None:
    section = process_reference().partition(f"## kvgate {command.name}\n")[2].partition("\n## ")[0]
    rows = [line.split()[1].strip("`") for line in section.splitlines() if line.startswith("| `")]
    assert rows == [option.opts[0] for option in command.params]
