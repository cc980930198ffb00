"""Answers actors that have their observations computed elsewhere: messages, and the stream of one actor."""
