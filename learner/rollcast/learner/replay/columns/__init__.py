"""The arrays of entries: layout, memory, and samples."""
