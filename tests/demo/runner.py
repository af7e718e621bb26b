"""The demo as a command, in this process: its workers are processes all the same."""

import json
from typing import Any

import typer
from typer.testing import CliRunner, Result

from oncebox.demo.command import demo_command


def demo(*arguments: str) -> Result:
    """Run `oncebox demo` with these arguments."""
    app = typer.Typer()
    app.command()(demo_command)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})


def demo_json(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and what `--json` printed."""
    result = demo("--json", *arguments)
    assert result.stdout, result.output
    return result.exit_code, json.loads(result.stdout)
