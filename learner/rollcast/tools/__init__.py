"""The tools around learning, and the command line: they import the learner, and it imports none of them."""
