"""Compare today's answers with the frozen ones, and print every difference by its cause: `make answers`.

PYTHONPATH=benchmarks:tests python -m answers [--write | --markdown FILE]
"""

import argparse
import subprocess
import sys
from pathlib import Path

from answers.asking import ask
from answers.comparison import compare, lines, markdown
from answers.questions import QUESTIONS
from answers.records import ROOT, freeze


def main() -> None:
    parser = argparse.ArgumentParser(prog="answers", description="Compare today's answers with the frozen ones.")
    parser.add_argument("--write", action="store_true", help="freeze today's answers; the working tree must be clean")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the differences by cause as a table")
    options = parser.parse_args()
    if options.write:
        _write()
        return
    compared = compare(question for questions in QUESTIONS.values() for question in questions())
    if options.markdown:
        options.markdown.write_text(markdown(compared), encoding="utf-8")
    for line in lines(compared):
        print(line)
    if compared.failures:
        sys.exit(
            "make answers: answers differ without a cause; mend them, or name the cause in benchmarks/answers/causes.py"
        )


def _write() -> None:
    if _git("status", "--porcelain"):
        sys.exit("answers --write: the working tree is not clean, so that no commit gives these answers; commit first")
    commit = _git("rev-parse", "HEAD")
    for kind, questions in QUESTIONS.items():
        freeze(kind, ask(questions()), commit=commit)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
