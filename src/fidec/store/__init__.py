"""Storage: files that are whole or absent, hashes, locks, checkpoints, run directories and logs."""
