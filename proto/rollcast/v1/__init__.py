"""The rollcast.v1 protocol: messages and services generated from the .proto files beside this one."""
