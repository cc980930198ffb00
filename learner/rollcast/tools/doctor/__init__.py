"""`rollcast doctor`: finds the problems of a run, and suggests remedies."""
