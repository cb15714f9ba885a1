"""Experts: walkers that follow a given direction, trained here, which makers of maze data send through mazes."""
