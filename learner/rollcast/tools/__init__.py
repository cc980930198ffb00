"""The command line and the tools around training. They import the learner; the learner imports none of them."""
