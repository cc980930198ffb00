"""What turns a batch into a better policy: the seam, and the algorithms behind it."""
