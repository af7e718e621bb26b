"""Importing oncebox needs msgspec and the standard library, and loads nothing else."""

import subprocess
import sys

# Refusing an import is what a bare environment does, so optional imports are tried for real.
_BARE_INTERPRETER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("oncebox", "msgspec"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
import oncebox
for name in ("typer", "rich", "psycopg", "asyncpg", "sqlalchemy", "django", "pydantic"):
    assert name not in sys.modules, name
"""


def test_import_needs_only_msgspec() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BARE_INTERPRETER],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
