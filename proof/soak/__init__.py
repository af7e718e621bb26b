"""Chaos for real: workers and the database killed at random while messages flow, for as long as wanted."""
