"""Several learners that train one policy together: one process a rank, started by torchrun."""
