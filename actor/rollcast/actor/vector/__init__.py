"""Vector environments: stepped one after the other or in processes, with the same values either way."""
