"""What it was measured on: enough to read the absolutes, nothing that names the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

PACKAGES = ("oncebox", "psycopg", "asyncpg", "uvloop", "msgspec")


def describe() -> dict[str, Any]:
    """Cores, memory, load, versions, commit."""
    return {
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_at_start": [round(value, 2) for value in os.getloadavg()],
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
