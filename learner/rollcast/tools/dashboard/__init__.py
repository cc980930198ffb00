"""The dashboard: a page for browsers that shows what learners and their actors do, in its own process."""
