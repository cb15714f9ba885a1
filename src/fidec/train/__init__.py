"""Training runs: configuration, the loop, checkpoints, evaluation, the run directory and the portable policy."""
