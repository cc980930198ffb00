"""`rollcast doctor`: finds the problems of a run, and says what to do."""
