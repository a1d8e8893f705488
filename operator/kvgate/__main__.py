"""The console script: starts a door, and imports only the one that is asked for."""

import atexit
import gc
import os
import sys
from importlib import import_module
from types import ModuleType

from kvgate import INSTALL


def main() -> None:
    """`kvgate controller` and `kvgate webhook` are processes; everything else is the command line."""
    _leave_plugins_out()
    _check_data()
    door = next(iter(sys.argv[1:2]), "")
    if door in ("controller", "webhook"):
        gc.set_threshold(20_000, 20)  # a document is many small objects, and dies without the collector
        _start(door)
    else:
        _import_msgspec()
        gc.set_threshold(200_000, 20)  # a short life makes little garbage, and imports look like it
        atexit.register(gc.freeze)  # the interpreter collects before it ends, which takes a fifth of a short run
        from kvgate.cli.main import main as cli

        cli()


def _leave_plugins_out() -> None:
    """Let pydantic look for no plugins, because we use none. Its module that looks for them imports the packages of e-mail and archives,
    even where the variable switches plugins off: that takes a twentieth of a short run."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    loader = ModuleType("pydantic.plugin._loader")
    vars(loader)["get_plugins"] = tuple
    sys.modules.setdefault(loader.__name__, loader)


def _check_data() -> None:
    """Refuse data that cannot be used before anything is judged by them."""
    if os.environ.get("KVGATE_DATA"):
        from kvgate import bundle

        try:
            bundle.version()
        except bundle.BadBundle as error:
            print(f"kvgate: {error}", file=sys.stderr)
            sys.exit(2)


def _import_msgspec() -> None:
    """Import msgspec as where typing_extensions is not installed: it takes names from there that typing has, and the module is large."""
    if "typing_extensions" not in sys.modules:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
        import_module("msgspec")
        del sys.modules["typing_extensions"]


def _start(door: str) -> None:
    """The doors need more packages than the command line."""
    try:
        command = import_module(f"kvgate.{door}.command")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kvgate"):
            raise
        sys.exit(f"kvgate {door} needs the package {error.name}: {INSTALL.format(extras='operator')}")
    command.main(sys.argv[2:])


if __name__ == "__main__":
    main()
