"""Jobs of Slurm, through submitit."""
