"""Budgets of work: how much each hot path does, counted, so that no machine and no load changes the numbers."""
