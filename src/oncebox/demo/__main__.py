"""`python -m oncebox.demo`: the demo without the rest of the command line."""

from __future__ import annotations

import typer

from oncebox.demo.command import demo_command

if __name__ == "__main__":
    typer.run(demo_command)
