"""Vector environments that step in sequence or in processes, with the same results."""
