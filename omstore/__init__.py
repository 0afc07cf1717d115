"""Out-of-core transition graphs for reinforcement learning."""
