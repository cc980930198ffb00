"""What we measure, and how: every module prints a table; nothing here asserts a time."""
