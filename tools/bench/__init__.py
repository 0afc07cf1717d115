"""Measurements of what the design promises, each against a baseline in the same run."""
