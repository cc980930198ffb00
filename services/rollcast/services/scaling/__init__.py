"""Tells KEDA how many actors a learner wants: KEDA's contract for external scalers."""
