"""The distribution of policies to actors: values, encodings, and both sides of PolicyService."""
