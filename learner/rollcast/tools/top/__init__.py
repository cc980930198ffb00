"""`rollcast top`: shows a run in the terminal while it runs."""
