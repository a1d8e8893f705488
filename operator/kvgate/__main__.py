"""The console script: starts a door, and imports only the one that is asked for."""

import os
import sys
from importlib import import_module


def main() -> None:
    """`kvgate controller` and `kvgate webhook` are processes; everything else is the command line."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # we use none, and looking for them takes time
    door = next(iter(sys.argv[1:2]), "")
    if door in ("controller", "webhook"):
        _start(door)
    else:
        from kvgate.cli.main import main as cli

        cli()


def _start(door: str) -> None:
    """The doors need more packages than the command line."""
    try:
        command = import_module(f"kvgate.{door}.command")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kvgate"):
            raise
        sys.exit(f"kvgate {door} needs the package {error.name}: pip install 'kvgate[operator]'")
    command.main(sys.argv[2:])


if __name__ == "__main__":
    main()
