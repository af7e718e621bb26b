"""Trying to break the promise: every crash point, interleavings, a model, planted bugs, chaos."""
