"""Where jobs run: processes of this machine, a Ray cluster or Slurm. `fidec.executors.executor` is the interface."""
