"""Print docs/accuracy.md and write it: `make accuracy`."""

import sys

from accuracy.document import PATH, document
from accuracy.explanations import Unexplained


def main() -> None:
    try:
        text = document()
    except Unexplained as missing:
        sys.exit(f"make accuracy: {missing}")
    PATH.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
