"""Implements KEDA's external scaler: reports the number of actors that a learner wants."""
