"""The commands of `rollcast`, one module each: they take settings and return an exit code."""
