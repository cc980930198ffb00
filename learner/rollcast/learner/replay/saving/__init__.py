"""What a checkpoint of a buffer is made of: the state of each part, and files of arrays written beside training."""
