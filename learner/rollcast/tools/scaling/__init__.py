"""`rollcast scaler`: decides how many actors a learner needs, from the waits of the learner and its actors."""
