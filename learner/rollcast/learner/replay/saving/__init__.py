"""The contents of a buffer's checkpoint: the state of each part, and files of arrays written during training."""
