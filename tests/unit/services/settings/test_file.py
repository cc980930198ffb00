import os
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.file import encode_settings, read_settings
from tests.unit.services.settings.example_settings import Network, read, refused


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


class TestFile:
    def test_is_read_below_the_environment_and_the_command_line(self, config: Path, monkeypatch: pytest.MonkeyPatch):
        config.write_text("seed: 1\nn_actors: 1\nsizes: [1, 2]\nnetwork: {learning_rate: 0.5}\n")
        monkeypatch.setenv("ROLLCAST_N_ACTORS", "5")
        monkeypatch.setenv("ROLLCAST_SEED", "5")
        settings = read("--config", str(config), "--seed", "7")
        assert (settings.seed, settings.n_actors, settings.sizes) == (7, 5, (1, 2))
        assert settings.network == Network(learning_rate=0.5)
        assert read("--seed", "7").sizes == (64, 64), "a file stays with the call that named it"

    def test_may_hold_nothing_but_comments(self, config: Path):
        config.write_text("# seed: 3\n")
        assert read(f"--config={config}").model_dump() == read().model_dump()

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"seed: 1\nsizes: [1\nn_actors: 2\n", "line 3: did not find expected ',' or ']'"),
            (b"seed: 1\n\tn_actors: 2\n", "line 2: found a tab character"),
            (b"seed: 1\nnetwork: \xff\xfe\n", "line 2: byte 0xff is not UTF-8"),
            (b"seed: 1\nn_actors: !!python/name:os.system\n", "line 2 has the tag 'tag:yaml.org,2002:python/name:"),
            (b"seed: &one 1\nn_actors: *one\n", "line 1 has the anchor or alias 'one'"),
            (b"- seed\n", " holds a list, not a mapping of names to values"),
            (b"1: 2\n", ", line 1 has the name 1, which YAML does not read as text; write '1'"),
            (
                b"seed: 1\nenv_kwargs: {no: 1}\n",
                ", line 2 has the name no, which YAML does not read as text; write 'no'",
            ),
            (b"seed: 1\nseed: 1\n<<: {seed: 2}\n", ", line 2 has 'seed' again, after line 1"),
            (b"seed: 1\n<<: {seed: 2}\n", ", line 2 has the name <<, which YAML does not read as text; write '<<'"),
            (b"? [1, 2]\n: 3\n", ", line 1 has a sequence as a name, not text"),
            (b"seed: 2026-13-01\n", ", line 1 has the date 2026-13-01; write '2026-13-01'"),
            (b"env_kwargs: {since: 2026-01-01}\n", ", line 1 has the date 2026-01-01; write '2026-01-01'"),
            (b"seed: 1\nn_actors: 2\nseed: 3\n", ", line 3 has 'seed' again, after line 1"),
            (b"seed: 1\n'seed': 1\n", ", line 2 has 'seed' again, after line 1"),
            (
                b"network: {learning_rate: 1.0, learning_rate: 2.0}\n",
                ", line 1 has 'learning_rate' again, after line 1",
            ),
            (b"seed: 1\nn_actors: 010\n", ", line 2 has the number 010, which YAML reads as 8; write 8 or '010'"),
            (
                b"sizes: [64,\n  -0_17]\n",
                ", line 2 has the number -0_17, which YAML reads as -15; write -15 or '-0_17'",
            ),
            (b"seed: 1:30\n", ", line 1 has the number 1:30, which YAML reads as 90; write 90 or '1:30'"),
            (
                b"network: {learning_rate: 1:30.5}\n",
                ", line 1 has the number 1:30.5, which YAML reads as 90.5; write 90.5",
            ),
        ],
    )
    def test_that_is_not_plain_yaml_is_refused_with_its_line(self, config: Path, content: bytes, problem: str):
        config.write_bytes(content)
        message = refused("--config", str(config))
        assert message.startswith(f"{str(config)!r}")
        assert problem in message
        assert "expected a YAML file of settings for --config; correct the file" in message
        assert "\n" not in message

    @pytest.mark.parametrize("number", ["0", "-7", "0x1f", "0b11", "1_000", "+3"])
    def test_may_hold_every_other_number(self, config: Path, number: str):
        config.write_text(f"text: '010'\nnumber: {number}\nrate: 0.5\nlow: 00.5\n")
        expected = {"text": "010", "number": int(number, 0), "rate": 0.5, "low": 0.5}
        assert read_settings(config, expected="", advice="") == expected

    def test_that_cannot_be_read_is_refused_with_the_reason(self, tmp_path: Path):
        assert "cannot be read: Is a directory" in refused("--config", str(tmp_path))
        assert "cannot be read: No such file or directory" in refused("--config", str(tmp_path / "none.yaml"))
        assert "cannot be read: Input/output error" in refused("--config", "/proc/self/mem")

    def test_that_is_not_named_or_named_twice_is_refused(self):
        assert "no file is given" in refused("--config")
        assert "no file is given" in refused("--config=")
        assert "2 files are given, a.yaml, b.yaml" in refused("--config", "a.yaml", "--config=b.yaml")

    def test_with_a_name_that_does_not_exist_is_refused_with_the_one_that_may_be_meant(self, config: Path):
        config.write_text("n_actor: 3\nnetwork: {learnig_rate: 1}\nseed: -1\nlr: 1\nnetwrk: {learning_rate: 1}\n")
        assert refused("--config", str(config)).splitlines() == [
            f"--seed: -1 is not valid (from {str(config)!r}): expected at least 0",
            f"network.learnig_rate (from {str(config)!r}): there is no such setting; did you mean learning_rate?",
            f"n_actor (from {str(config)!r}): there is no such setting; did you mean n_actors?",
            f"lr (from {str(config)!r}): there is no such setting; did you mean network.learning_rate?",
            f"netwrk (from {str(config)!r}): there is no such setting; did you mean network?",
        ]

    @pytest.mark.parametrize(
        ("settings", "name", "value"),
        [
            ({"run_dir": os.fsdecode(b"runs/\xff")}, "run_dir", "runs/\\udcff"),
            ({"env_kwargs": {"maps": ["a", "b\ud800"]}}, "env_kwargs.maps.1", "b\\ud800"),
        ],
    )
    def test_text_that_is_not_utf8_is_refused_by_the_name_of_its_setting(self, settings, name: str, value: str):
        with pytest.raises(ConfigurationError) as error:
            encode_settings({"seed": 1, **settings})
        assert str(error.value).startswith(f"{name} is '{value}', which is not UTF-8")
        assert "choose another" in str(error.value)

    def test_text_of_every_kind_comes_back(self, config: Path):
        settings = {"run_dir": "Zürich/東京 \U0001f600", "other": "010", "text": "1:30", "more": ["\x07", "a: b", "\n"]}
        config.write_bytes(encode_settings(settings))
        assert read_settings(config, expected="", advice="") == settings
