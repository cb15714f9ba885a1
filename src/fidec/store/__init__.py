"""Storage: atomic files, JSON, hashes, locks, checkpoints, run directories and logs."""
