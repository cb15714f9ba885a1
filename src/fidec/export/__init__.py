"""A policy as a file that needs no fidec: ONNX, StableHLO, or NumPy source."""
