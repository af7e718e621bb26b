"""Peers, each in a process of its own in `.venv-peers` (`make bench-peers`). Nothing here imports oncebox."""
