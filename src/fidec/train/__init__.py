"""Training runs: configuration, the loop, the online phase, evaluation and the portable policy."""
