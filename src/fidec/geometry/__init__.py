"""The geometry laboratory: landscapes of known density, on which the KL of a refined policy is exact."""
