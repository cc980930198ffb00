"""Exports policies to ONNX: the graph, the names that players expect, and the comparison with the policy."""
