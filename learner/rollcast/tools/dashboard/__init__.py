"""The dashboard: a page for browsers that shows what learners and their actors do, in a process of its own."""
