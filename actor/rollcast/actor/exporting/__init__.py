"""Exports policies to ONNX: the graph, the names that players expect, and the check against the policy itself."""
