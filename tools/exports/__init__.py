"""Exports in every legacy shape, made from exact worlds with real objects and the real pickle module."""
