"""The geometry laboratory: plane landscapes of known density, where the cost of moving a policy is exact."""
