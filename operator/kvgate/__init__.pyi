from kvgate.cli.exits import BadInput as BadInput
from kvgate.cli.in_python import check as check
from kvgate.cli.in_python import judge as judge
from kvgate.cli.in_python import size as size
from kvgate.cli.in_python import sweep as sweep
from kvgate.cli.in_python import why as why

__all__ = ["BadInput", "check", "judge", "size", "sweep", "why"]
__version__: str
DOCS_URL: str
REPOSITORY_URL: str
INSTALL: str
