"""Text that would do something where it is printed, in every place of a manifest; `tests/hostile/README.md`."""

import json
import unicodedata
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "hostile"
TEXTS: dict[str, str] = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))


def filled(template: str, text: str) -> str:
    """A manifest with the text in every place: in quotes of YAML, in JSON that is a text of YAML, in comments."""
    quoted = "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text)
    in_json = json.dumps(text)[1:-1].replace("'", "''")
    comment = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Zl", "Zp"))
    return template.replace("HOSTILE", quoted).replace("JSON_TEXT", in_json).replace("COMMENT", comment)


def file_name(text: str) -> str:
    """As much of it as a name of a file can hold."""
    return text.replace("/", "_")[:120]


def write_tree(folder: Path, text: str) -> Path:
    """All manifests, in a folder and in files that are called by the text too; what cannot be read stands beside them."""
    root = folder / file_name(text)
    root.mkdir()
    for template in sorted((FOLDER / "tree").iterdir()):
        content = filled(template.read_text(encoding="utf-8"), text)
        (root / f"{file_name(text)} {template.name}").write_text(content, encoding="utf-8")
    (root / f"{file_name(text)}.yaml").write_bytes(b"vllm: \xff\n")
    return root
