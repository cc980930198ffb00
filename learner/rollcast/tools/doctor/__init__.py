"""`rollcast doctor`: says what is wrong with a run, and what to do."""
