"""The console script: starts a door, and imports only the one that is asked for."""

import sys


def main() -> None:
    """`kvgate controller` and `kvgate webhook` are processes; everything else is the command line."""
    match sys.argv[1:2]:
        case ["controller"]:
            from kvgate.controller.command import main as controller

            controller(sys.argv[2:])
        case ["webhook"]:
            from kvgate.webhook.command import main as webhook

            webhook(sys.argv[2:])
        case _:
            from kvgate.cli.main import main as cli

            cli()


if __name__ == "__main__":
    main()
