"""Several learners that train one policy together: one process for each rank, started by torchrun."""
