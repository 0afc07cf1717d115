"""Out-of-core transition graphs for reinforcement learning."""

__version__ = "0.1.0"
