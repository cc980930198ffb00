"""The commands of `rollcast`, a module each: settings in, exit code out."""
