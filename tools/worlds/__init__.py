"""Exact worlds with known counts, to make exports from and to check stores against."""
