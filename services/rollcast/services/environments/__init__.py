"""The protocol of environments that dial in: messages, their allowed order, and the stream of one client."""
