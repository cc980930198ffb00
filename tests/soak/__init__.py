"""Whether rollcast stays as it is for hours: memory, threads, descriptors and processes, sampled and judged."""
