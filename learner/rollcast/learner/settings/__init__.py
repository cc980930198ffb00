"""The settings of every command. Imports neither torch nor grpc, so that `--help` is fast."""
