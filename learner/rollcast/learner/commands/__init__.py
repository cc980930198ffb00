"""The commands of `rollcast`, one module each: functions of settings that return an exit code."""
