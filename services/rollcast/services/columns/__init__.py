"""The columns that experience consists of, described once for all that records, carries, cuts or stores them."""
