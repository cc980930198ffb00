"""Encodes and decodes tensors, message bodies, digests and errors."""
