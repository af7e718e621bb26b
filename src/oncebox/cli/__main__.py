"""`python -m oncebox.cli`: how a supervisor starts its children."""

from oncebox.cli import main

main()
