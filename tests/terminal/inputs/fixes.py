"""A user's script: print each cause that `kvgate why -o json` found, and the first change of it that was judged to start."""

import json
import sys
from pathlib import Path

for answer in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["answers"]:
    print(answer["happened"]["id"], next(fix["command"] for fix in answer["fixes"] if fix["is_checked"]), sep="\n")
