"""Vector environments: one after the other, or several a process through shared memory; the same values either way."""
