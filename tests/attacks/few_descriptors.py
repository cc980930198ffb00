"""Runs a module with few descriptors, as a process has them whose limit nobody has raised: LIMIT MODULE ARGUMENTS."""

import resource
import runpy
import sys

if __name__ == "__main__":
    _, limit, module, *arguments = sys.argv
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
