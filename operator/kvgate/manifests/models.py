"""What a manifest writes for a model → the name that the catalogue knows."""

import re

_SCHEMES = ("hf://", "huggingface://", "https://huggingface.co/")
_MOUNTS = re.compile(r"^(?:pvc|s3|gs|oss|oci|file)://")


def model_id(written: str) -> str:
    """`hf://org/name@revision` → `org/name`; of a path its last two parts, which often are the name."""
    text = written.strip()
    for scheme in _SCHEMES:
        if text.startswith(scheme):
            return re.split(r"[@:?#]", text.removeprefix(scheme))[0].strip("/")
    if _MOUNTS.match(text) or text.startswith("/"):
        parts = [part for part in text.split("/") if part and not part.endswith(":")]
        return "/".join(parts[-2:]) if len(parts) > 1 else (parts[0] if parts else "")
    return text
