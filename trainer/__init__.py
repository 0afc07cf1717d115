"""Opponent-model training on a store; uses only omstore's public names."""
