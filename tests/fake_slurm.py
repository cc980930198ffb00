"""Slurm's commands as executables that note their calls and answer as a test says: no cluster refuses on demand."""

import os
from pathlib import Path

_COMMAND = """\
#!/bin/bash
cd {folder} || exit 99
echo "{name} $*" >>calls
n=$(grep -c '^{name} ' calls)
for answer in {name}.$n {name}; do
  [ -e "$answer" ] && . "./$answer" && exit
done
exit 0
"""


class FakeSlurm:
    """The commands, in a folder that is to be the first on PATH.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in ("sbatch", "scancel", "squeue", "scontrol"):
            command = folder / "bin" / name
            command.write_text(_COMMAND.format(folder=folder, name=name))
            command.chmod(0o755)
        self.answer("sbatch", "echo $((10 + n))")

    def path(self) -> str:
        """Returns the PATH with these commands first."""
        return os.pathsep.join((str(self.folder / "bin"), os.environ["PATH"]))

    def answer(self, name: str, shell: str, *, call: int | None = None) -> None:
        """Makes a command run some shell, at each of its calls or at one; the first is 1, `$n` is the number."""
        (self.folder / (name if call is None else f"{name}.{call}")).write_text(f"{shell}\n")

    def refuse(self, name: str, said: str, *, call: int | None = None) -> None:
        """Makes a command fail as Slurm's do, with a line on stderr."""
        self.answer(name, f"echo {name}: error: '{said}' >&2; exit 1", call=call)

    def calls(self, name: str = "") -> list[str]:
        """Returns the calls so far, of one command or of all."""
        noted = self.folder / "calls"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [line for line in lines if line.startswith(name)]
