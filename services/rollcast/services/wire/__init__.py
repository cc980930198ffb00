"""Turns tensors, message bodies, digests and errors into bytes, and back."""
