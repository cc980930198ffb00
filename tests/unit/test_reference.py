"""The reference says what the code does: versions, formats, variables, exit codes, limits of algorithms."""

import datetime
import re
import struct
import tomllib
from collections.abc import Iterator
from typing import Any, ClassVar

import grpc
import gymnasium
import numpy as np
import pytest
import xxhash
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from pydantic import BaseModel

from rollcast.actor.acting.loop import DRAIN_TIMEOUT_S
from rollcast.actor.connection.stall_detector import SILENCE_S
from rollcast.actor.policies.action_masks import FORBIDDEN
from rollcast.actor.policies.features import MIN_IMAGE_SIDE
from rollcast.actor.statistics.reductions import MAX_KEPT
from rollcast.learner.algorithms.defaults import ALGORITHM_DEFAULTS
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.checkpoints.manifest import FORMAT as CHECKPOINT_FORMAT
from rollcast.learner.devices.graphs import MAX_GRAPHS
from rollcast.learner.durable.log import SEGMENT_BYTES
from rollcast.learner.durable.segments import FORMAT as LOG_FORMAT
from rollcast.learner.history.events import MAX_TEXT_LENGTH, N_EVENTS
from rollcast.learner.history.points import COARSE_S, FINE_S, N_COARSE, N_FINE, N_WHOLE
from rollcast.learner.history.run_history import MAX_LANES, N_EVALUATIONS
from rollcast.learner.replay.checkpoint import CHUNK_BYTES, FILE_BYTES
from rollcast.learner.replay.stores.trajectory_ring import STEPS_PER_EPISODE_END
from rollcast.learner.training.run_parts import ALGORITHMS
from rollcast.learner.training.stall_watchdog import NOTICE_S, STACKS_S
from rollcast.services.client.channel import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS
from rollcast.services.environments.codec import MAX_OBSERVATION, MAX_REWARD
from rollcast.services.joining.join import PROTOCOL_VERSION
from rollcast.services.process.exit_codes import bad_settings_exit_code
from rollcast.services.process.interrupts import INTERRUPTED
from rollcast.services.rollouts.recording_codec import RECORDING_FORMAT
from rollcast.services.spaces.codec import environment_spaces_from_proto
from rollcast.services.wire.seal import seal
from rollcast.tools.commands import COMMANDS
from rollcast.tools.watching.ranking import SILENT_S
from rollcast.v1 import environment_pb2, space_pb2, tensor_pb2
from tests.documents import PAGES, ROOT, section_of, text_of, without_blocks
from tests.unit.test_readme import DEPLOYMENT_VARIABLES, fields_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# torch's launchers set them; torch's own code reads them.
OF_TORCH = {"MASTER_PORT"}
UNITS = {"": 1, "s": 1, "k": 1e3, "M": 1e6, "MiB": 1 << 20, "GiB": 1 << 30}
# Defaults that other settings decide.
COMPUTED: dict[str, set[object]] = {"--sac.target-critics": {SacSettings().n_target_critics}}


def table(name: str, heading: str) -> dict[str, list[str]]:
    """Returns the rows of a section's tables by their first cell; headers are among them."""
    lines = [line for line in section_of(name, heading).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {first: rest for first, *rest in rows}


def flat(defaults: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the options of nested defaults, and their values."""
    for name, value in defaults.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"--{prefix}{name}".replace("_", "-"), value


def floor(requirement: str) -> str:
    """Returns the lowest version that a dependency of the project allows."""
    listed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["torch"]]
    (found,) = [each.partition(">=")[2] for each in listed if each.partition(">=")[0] == requirement]
    return found


class TestCompatibility:
    def test_python_is_the_projects(self):
        rows = table("compatibility.md", "Python, systems and libraries")
        oldest = PROJECT["requires-python"].removeprefix(">=")
        assert rows["Python"][0] == f"{oldest} and newer"
        stages = re.search(r"STAGES:-([^}]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
        assert stages is not None
        light = re.findall(r"light-(3\.\d+)", stages[1])
        assert rows["Python"][1] == f"{oldest} in full; {' and '.join(light[1:])} without torch"

    @pytest.mark.parametrize("library", ["gymnasium", "numpy", "protobuf", "grpcio", "torch"])
    def test_libraries_have_the_projects_floors(self, library: str):
        rows = table("compatibility.md", "Python, systems and libraries")
        (row,) = [cells for first, cells in rows.items() if first.split()[0] == library]
        assert row[0] == f"{floor(library)} and newer"

    def test_kubernetes_is_what_its_page_says(self):
        (versions,) = re.findall(r"valid in Kubernetes (1\.\d+ to 1\.\d+)", text_of("kubernetes.md"))
        assert table("compatibility.md", "Engines")["Kubernetes"][0].startswith(f"{versions};")

    def test_formats_are_the_codes(self):
        assert f"The protocol version is {PROTOCOL_VERSION}." in section_of("compatibility.md", "Versions of rollcast")
        rows = table("compatibility.md", "Files")
        assert rows["checkpoint"][0] == str(CHECKPOINT_FORMAT)
        assert rows["write-ahead log (`--durable`)"][0] == str(LOG_FORMAT)
        assert rows["recording"][0] == f"`{RECORDING_FORMAT}`"
        assert f"`FORMAT` is {CHECKPOINT_FORMAT};" in text_of("file_formats.md")
        assert f"| `protocol_version` | {PROTOCOL_VERSION} |" in text_of("protocol.md")


class TestVariables:
    def test_options_become_variables_as_shown(self):
        for option, (variable,) in table("environment_variables.md", "Settings").items():
            if found := re.fullmatch(r"`--([\w.-]+) (\S+)`", option):
                name = found[1].replace("-", "_").replace(".", "__").upper()
                assert variable == f"`ROLLCAST_{name}={found[2]}`"
                known = [fields_of(command.settings(), separator="__") for command in COMMANDS.values()]
                assert any(name.lower() in fields for fields in known)

    def test_variables_of_containers_are_all_there(self):
        named = re.findall(r"`(ROLLCAST_\w+)`", " ".join(table("environment_variables.md", "Containers")))
        assert sorted(named) == sorted(DEPLOYMENT_VARIABLES)
        files = [ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("*.yml")]
        text = "".join(path.read_text(encoding="utf-8") for path in files)
        assert [name for name in named if name not in text] == []

    def test_variables_of_other_programs_are_read(self):
        rows = table("environment_variables.md", "Variables of other programs")
        named = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
        assert len(named) > 5
        roots = [ROOT / package for package in ("services", "actor", "learner")]
        text = "".join(path.read_text(encoding="utf-8") for root in roots for path in root.rglob("*.py"))
        assert {name for name in named if f'"{name}"' not in text and name not in text} <= OF_TORCH


class TestDefaults:
    """Tables of options have a column "default", which is the code's unless it depends on other settings."""

    WORDS: ClassVar[dict[str, set[object]]] = {
        "none": {None, "none"},
        "never": {None},
        "no": {False},
        "off": {False},
        "on": {True},
    }
    # By the option, the values that some command or algorithm gives it.
    KNOWN: ClassVar[dict[str, set[object]]] = {}

    @classmethod
    def collect(cls, settings: BaseModel, prefix: str = "") -> None:
        for name, value in settings:
            if isinstance(value, BaseModel):
                cls.collect(value, f"{prefix}{name}.")
            elif isinstance(value, str | int | float | None):
                cls.KNOWN.setdefault(f"--{prefix}{name}".replace("_", "-"), set()).add(value)

    @classmethod
    def setup_class(cls):
        for command in COMMANDS.values():
            cls.collect(command.settings().model_construct())

    @staticmethod
    def rows() -> list[tuple[str, str, str]]:
        """Returns the page, the option and the default of each row whose options have a plain default each, or one."""
        found = []
        for name in PAGES:
            header: list[str] = []
            for line in text_of(name).splitlines():
                cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else []
                header = (header or cells) if cells else []
                if len(cells) < 3 or header[1] != "default":
                    continue
                options = re.findall(r"`(--[\w.-]+)(?: \w+)?`(?: \(\w\))?(?:, |$)", cells[0])
                defaults = cells[1].split(", ") if len(options) > 1 else [cells[1]]
                defaults *= len(options) if len(defaults) == 1 else 1
                pairs = zip(options, defaults, strict=bool(options))
                found += [
                    (name, option, default.strip("`")) for option, default in pairs if " " not in default.strip("`")
                ]
        return found

    def known(self, option: str, page: str) -> set[object]:
        """Returns the defaults of an option; on the page of an algorithm, that of the algorithm."""
        values = dict(flat(ALGORITHM_DEFAULTS.get(page.removesuffix(".md"), {})))
        return {values[option]} if option in values else self.KNOWN.get(option, set())

    def test_are_those_of_the_settings(self):
        rows = self.rows()
        assert len(rows) > 60
        for page, option, shown in rows:
            number = re.fullmatch(r"[\d.,]+(?:e-?\d+)?", shown)
            expected = {float(shown.replace(",", ""))} if number else self.WORDS.get(shown, {shown})
            known = self.known(option, page)
            assert known & expected, f"{page}: {option} is {shown}, and has {known}"

    def test_those_in_the_text_are_too(self):
        """A default stands behind its option, as in `--log-interval-s` (2 s)."""
        shown = [
            (name, *match)
            for name in PAGES
            for match in re.findall(
                r"`(--[\w.-]+)`(?:\]\([^)]*\))? \(([\d.,]+)(?: (s|MiB|GiB))?(?: here)?\)", without_blocks(text_of(name))
            )
        ]
        assert len(shown) > 20
        for page, option, number, unit in shown:
            value = float(number.replace(",", "")) * UNITS[unit]
            known = self.KNOWN.get(option, set()) | COMPUTED.get(option, set())
            ports = {float(text.rpartition(":")[2]) for text in known if re.search(r":\d+$", str(text))}
            assert value in known | ports, f"{page}: {option} is {number} {unit}, and has {known}"

    def test_those_of_algorithms_are_too(self):
        shown = []
        for name in PAGES:
            for line in text_of(name).splitlines():
                if option := re.match(r"\| `(--[\w.-]+)` \|", line):
                    pairs = re.findall(r"\b(SAC|DQN|R2D2) ([\d.,]+)([kM]?)\b", line.split("|")[2])
                    shown += [(name, option[1], *pair) for pair in pairs]
        assert len(shown) > 5
        for page, option, algorithm, number, unit in shown:
            known = dict(flat(ALGORITHM_DEFAULTS[algorithm.lower()]))[option]
            assert float(number.replace(",", "")) * UNITS[unit] == known, f"{page}: {option} of {algorithm} is {number}"

    def test_environments_of_an_actor_are_too(self):
        (row,) = re.findall(r"`--envs-per-actor`, else .*?\)", text_of("connect_machines.md"))
        usual = COMMANDS["learner"].settings().model_fields["envs_per_actor"].default
        of = {name: defaults.get("envs_per_actor") for name, defaults in ALGORITHM_DEFAULTS.items()}
        assert row.endswith(f"else {usual} (DQN and R2D2: {of['dqn']}, SAC: {of['sac']})")
        assert of["r2d2"] == of["dqn"]
        assert of["impala"] is of["ppo"] is of["appo"] is None


class TestNumbers:
    """Numbers of no option stand in one place, and are the code's."""

    STATED: ClassVar[list[tuple[str, str]]] = [
        (
            "protocol.md",
            f"an interval of {KEEPALIVE_TIME_MS // 1000} s and a timeout of {KEEPALIVE_TIMEOUT_MS // 1000} s",
        ),
        ("protocol.md", f"a dead connection within {(KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS) // 1000 + 1} s"),
        ("protocol.md", f"if they have received nothing for {SILENCE_S:g} s"),
        ("protocol.md", f"set the logit to {FORBIDDEN:.0e}".replace("e+0", "e")),
        ("environment_protocol.md", f"from -{MAX_REWARD:.0e} to {MAX_REWARD:.0e}".replace("e+", "e")),
        ("environment_protocol.md", f"from -{MAX_OBSERVATION:.0e} to {MAX_OBSERVATION:.0e}".replace("e+", "e")),
        ("exit_codes.md", f"waits up to {DRAIN_TIMEOUT_S:g} s for their acknowledgement"),
        ("status.md", f"{N_FINE} of {FINE_S} s, {N_COARSE} of {COARSE_S} s, fewer than {N_WHOLE} of the whole run"),
        ("status.md", f"the time of up to {MAX_LANES:,} actors' main threads"),
        ("status.md", f"the last {N_EVENTS}; {MAX_TEXT_LENGTH} characters of text"),
        ("status.md", f"the last {N_EVALUATIONS:,}"),
        ("delivery.md", f"A segment has {SEGMENT_BYTES >> 20} MiB"),
        ("file_formats.md", f"up to {FILE_BYTES >> 20} MiB"),
        ("file_formats.md", f"{CHUNK_BYTES >> 20} MiB at a time"),
        ("troubleshoot.md", f"logs this after {NOTICE_S:g} s. After {STACKS_S:g} s it logs the stacks"),
        ("replay_buffer.md", f"shorter than {STEPS_PER_EPISODE_END} steps"),
        ("own_metrics.md", f"the last {MAX_KEPT:,} values"),
        ("own_network.md", f"from {MIN_IMAGE_SIDE} by {MIN_IMAGE_SIDE}"),
        ("gpu.md", f"captures at most {MAX_GRAPHS} times"),
        ("monitor.md", f"not reported its state for {SILENT_S:g} s"),
    ]

    @pytest.mark.parametrize(("page", "words"), STATED)
    def test_are_the_codes(self, page: str, words: str):
        assert words in " ".join(text_of(page).split())


class TestExitCodes:
    def test_settings_that_cannot_be_right_have_theirs(self):
        rows = table("exit_codes.md", "Exit codes")
        assert rows[str(bad_settings_exit_code({}))][0].startswith("Invalid settings.")
        assert rows[str(INTERRUPTED)][0] == "Ctrl-C."


class TestLimitations:
    ROWS = re.findall(r"^\| (?!limit|---)([^|]+) \| ([^|]+) \| ([^|]+) \|$", text_of("limitations.md"), re.MULTILINE)

    def test_each_has_a_date_and_a_way_around(self):
        assert len(self.ROWS) > 10
        for limit, checked, instead in self.ROWS:
            assert datetime.date.fromisoformat(checked) <= datetime.datetime.now(tz=datetime.UTC).date(), limit
            assert instead.strip()

    @pytest.mark.parametrize(
        ("limit", "choice", "algorithms"),
        [
            ("SAC and DQN learn no recurrent policies.", "`--recurrence`: lstm, gru", {"sac", "dqn"}),
            ("R2D2 learns discrete actions only.", "actions: box, box of float64", {"r2d2"}),
            ("PPO learns environments with one substep only.", "agents: different", {"ppo"}),
            ("`--durable` refuses PPO and `--actor-kind sequential`.", "`--durable`", {"ppo"}),
        ],
    )
    def test_those_of_algorithms_are_in_the_support_matrix(self, limit: str, choice: str, algorithms: set[str]):
        assert limit in {row[0] for row in self.ROWS}
        rows = table("support_matrix.md", "What goes with what")
        header = rows[""]
        (row,) = [cells for first, cells in rows.items() if first.startswith(choice)]
        refused = {name for name, cell in zip(header, row, strict=True) if cell == "-"}
        assert algorithms <= refused


class TestEnvironmentProtocol:
    """The page is enough to write a client: its fields are those of the messages, and its bytes are such messages."""

    FILES = (environment_pb2, space_pb2, tensor_pb2)
    # Of other services.
    UNUSED = ("NamedTensor", "Tensor.deferred")

    @staticmethod
    def described(field: FieldDescriptor) -> str:
        plain = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        kind = field.message_type.name if field.message_type else plain
        return f"{field.number} `{field.name}` {kind}{'...' if field.is_repeated else ''}"

    def test_fields_are_those_of_the_messages(self):
        found = {}
        for first, fields, *_ in self.cells("Messages"):
            if match := re.match(r"`(\w+)`", first):
                found[match[1]] = sorted(re.split(r", (?:or )?", fields))
        expected = {
            name: sorted(self.described(field) for field in message.fields if f"{name}.{field.name}" not in self.UNUSED)
            for file in self.FILES
            for name, message in file.DESCRIPTOR.message_types_by_name.items()
            if name not in self.UNUSED
        }
        assert found == expected

    def test_states_and_dtypes_have_their_numbers(self):
        states = {cells[0]: int(cells[1]) for cells in self.cells("Turns") if cells[1].isdigit()}
        assert states == {
            name.removeprefix("AGENT_STATE_"): number
            for name, number in environment_pb2.AgentState.items()
            if number > 0
        }
        halves = [half for cells in self.cells("Bytes") for half in (cells[:3], cells[4:]) if half[1].isdigit()]
        dtypes = {name: (int(number), int(size)) for name, number, size in halves}
        numbers = {name.removeprefix("DATA_TYPE_").lower(): number for name, number in tensor_pb2.DataType.items()}
        del numbers["unspecified"]
        assert dtypes == {name: (number, np.dtype(name).itemsize) for name, number in numbers.items()}

    @staticmethod
    def cells(heading: str) -> list[list[str]]:
        return [[first, *rest] for first, rest in table("environment_protocol.md", heading).items()]

    def test_codes_have_their_numbers(self):
        codes = {cells[0]: int(cells[1]) for cells in self.cells("Errors") if cells[1].isdigit()}
        assert len(codes) == 7
        assert codes == {name: grpc.StatusCode[name].value[0] for name in codes}

    def test_a_digest_is_written_as_described(self):
        told = " ".join(section_of("environment_protocol.md", "Damaged messages").split())
        digest = xxhash.xxh3_64_intdigest(b"rollcast")
        assert f"XXH3-64 of `rollcast` is `{digest:016x}`" in told
        assert seal(b"rollcast") == b"rollcast" + bytes.fromhex("71") + digest.to_bytes(8, "little")
        assert "Append the byte `71`, which is the key of `digest`, and the 8 bytes of the digest" in told

    def test_the_exchange_is_made_of_messages(self):
        section = section_of("environment_protocol.md", "An exchange")
        told = re.findall(r"`(\w+)`, from the (\w+).*?```text\n(.*?)```", section, re.DOTALL)
        assert [kind for kind, _, _ in told] == ["hello", "welcome", "turns", "actions", "turns", "farewell"]
        messages = []
        for kind, side, shown in told:
            message = environment_pb2.PlayRequest if side == "client" else environment_pb2.PlayResponse
            messages.append(message.FromString(bytes.fromhex(shown)))
            assert messages[-1].WhichOneof("kind") == kind
            assert messages[-1].SerializeToString(deterministic=True) == bytes.fromhex(shown)
        hello, welcome, first, actions, last, farewell = messages
        (substep,) = environment_spaces_from_proto(hello.hello.substeps).values()
        cart_pole = gymnasium.make("CartPole-v1")
        assert (substep.observation, substep.action) == (cart_pole.observation_space, cart_pole.action_space)
        assert (list(welcome.welcome.seeds), welcome.welcome.max_message_bytes) == ([1234], 4 << 20)
        (turn,) = first.turns.turns
        assert struct.unpack("<4f", turn.agents[0].observation[0]) == pytest.approx((0.01, -0.02, 0.03, 0.04))
        assert actions.actions.environments[0].agents[0].action == bytes([1, 0, 0, 0, 0, 0, 0, 0])
        ended, begun = last.turns.turns
        assert (ended.agents[0].state, ended.agents[0].reward) == (environment_pb2.AGENT_STATE_TERMINATED, 1)
        assert struct.unpack("<4f", begun.agents[0].observation[0]) == pytest.approx((0, 0.01, 0.02, -0.03))
        assert (farewell.farewell.reason, farewell.farewell.training_ended) == ("training has ended", True)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_algorithm_is_explained(name: str):
    pages = [path for path in PAGES.values() if path.parent.name == "explanation"]
    assert any(f"`--algorithm {name}`" in path.read_text(encoding="utf-8") for path in pages)
