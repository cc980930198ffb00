"""Runs rollcast for hours and checks that nothing grows: memory, threads, descriptors, processes."""
