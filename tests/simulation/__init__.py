"""Runs real parts in one thread, in orders that a seed decides, with a clock, a network and faults of its own.

python -m tests.simulation                 # random schedules of every scenario, for a minute
python -m tests.simulation --seed N        # one schedule again, shrunk to its fewest events if it fails
"""
