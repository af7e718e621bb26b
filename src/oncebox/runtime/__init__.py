"""Loops and lifetimes: sources, workers, heartbeat, maintenance. What they decide is in `core`."""
