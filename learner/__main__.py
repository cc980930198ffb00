"""The same as the `rollcast` command: `python -m learner COMMAND`."""

import sys

from learner.cli import main

if __name__ == "__main__":
    sys.exit(main())
