"""A Git repository in a folder of its own, with settings of nobody else."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class Sandbox:
    """A repository whose commits a test makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        identity = {
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.strip()

    def commit(self, **files: str | None) -> str:
        """Write manifests (`deploy__a` is deploy/a.yaml; None removes it), and return the commit."""
        return self.commit_files({f"{name.replace('__', '/')}.yaml": text for name, text in files.items()})

    def commit_files(self, files: Mapping[str, str | None]) -> str:
        """Write files by their names; None removes one. Return the commit."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text, encoding="utf-8")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        return self.git("rev-parse", "HEAD")
