"""Metrics, health and readiness of an app: what operators look at."""

from oncebox.metrics.operations import Operations

__all__ = ["Operations"]
