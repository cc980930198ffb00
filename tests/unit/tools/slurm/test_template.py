import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.tools.slurm.template import COMMAND, DIRECTIVES, PROLOG, TEMPLATE, fill, read_template


def test_own_template_keeps_its_lines_around_the_parts(tmp_path):
    file = tmp_path / "own.sh"
    file.write_text("#!/bin/bash -l\n@DIRECTIVES@\n#SBATCH --hint=nomultithread\nulimit -c 0\n@PROLOG@\n@COMMAND@\n")
    text = fill(read_template(file), {DIRECTIVES: "#SBATCH -n1", PROLOG: r"module load \1", COMMAND: "run a@B@c"})
    assert text == (
        "#!/bin/bash -l\n#SBATCH -n1\n#SBATCH --hint=nomultithread\nulimit -c 0\nmodule load \\1\nrun a@B@c\n"
    )


def test_without_a_file_it_is_rollcasts():
    assert read_template(None) == TEMPLATE


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("@DIRECTIVES@\n@PROLOG@\n@COMMAND@\n", "does not begin with '#!'.*'#!/bin/bash' as its first line; add it"),
        ("#!/bin/bash\n@DIRECTIVES@\n@PROLOG@\n", "has the line @COMMAND@ 0 times; expected each of .* once"),
        ("#!/bin/bash\n@DIRECTIVES@\n@PROLOG@\n@PROLOG@\n@COMMAND@\n", "has the line @PROLOG@ 2 times"),
        (
            "#!/bin/bash\n@DIRECTIVES@\n@PROLOG@\n@COMMAND@\n@EPILOG@\n",
            "has the line @EPILOG@, which is not a placeholder",
        ),
    ],
    ids=["no-shebang", "missing", "twice", "unknown"],
)
def test_refuses_a_template_that_makes_no_script(tmp_path, content, match):
    file = tmp_path / "own.sh"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"--template: '{file}' {match}"):
        read_template(file)


def test_refuses_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_template(tmp_path / "none.sh")
    (tmp_path / "binary.sh").write_bytes(b"#!/bin/bash\n\xff")
    with pytest.raises(ConfigurationError, match="cannot be read: it is not UTF-8"):
        read_template(tmp_path / "binary.sh")
