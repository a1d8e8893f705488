"""`PYTHONPATH=tools python -m generate`: rewrite every generated file below the root of the repository."""

import argparse
from pathlib import Path

from generate.files import GENERATED


def main() -> None:
    """Write the files and print their names; --list only prints them."""
    parser = argparse.ArgumentParser(prog="generate", description="Rewrite every generated file.")
    parser.add_argument("--list", action="store_true", help="show the names of the files and write none")
    parser.add_argument("--root", type=Path, default=Path(), help="the folder to write to; default: the current one")
    given = parser.parse_args()
    for name, text in GENERATED:
        path = given.root / name
        if not given.list:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
