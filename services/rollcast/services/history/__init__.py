"""History: what a learner and its actors have done, for pages and terminals that watch a run."""
