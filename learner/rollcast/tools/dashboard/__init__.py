"""The dashboard: a web page that shows the state of learners and their actors, served by a separate process."""
