"""The methods, one file each. `make(name, spec)` gives init, update and act."""

from fidec.algos.common.base import ENTRY_POINTS, METHODS, PRESETS, Algorithm, Method, get, make, names, with_base

__all__ = ["ENTRY_POINTS", "METHODS", "PRESETS", "Algorithm", "Method", "get", "make", "names", "with_base"]
