"""The protocol of central inference: messages, and the stream of one actor."""
