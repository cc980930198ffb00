"""Every option of every command: what its help says, and its values, right and wrong, wherever they come from.

Options are found in the classes of settings, and values in their types: an option of a new kind fails here by its name.
"""

import functools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rollcast.learner.algorithms.defaults import ALGORITHM_DEFAULTS
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.options import Option, bare_type, options_of, variable_name
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.settings import ProcessSettings
from rollcast.tools.commands import COMMANDS

pytestmark = pytest.mark.slow

# What some commands cannot be without; each of these is walked, too.
REQUIRED = {
    "record": ["--output=file"],
    "evaluate": ["run"],
    "export": ["run"],
    "serve-policy": ["run"],
    "compare": ["one", "two"],
    "plot": ["run"],
    "track": ["run"],
    "certs": ["folder"],
    "completion": ["bash"],
}
# Options that contradict others, with what each of them needs instead.
ALONE = {
    "resume": [],
    "rollouts": [],
    "add_actors": ["--run-dir=runs/one"],
    "recipe": ["--algorithm=appo"],
    "serve_environments": [],
    "serve_websockets": ["--serve-environments=localhost:50052"],
    "serve_batch_size": ["--serve-environments=localhost:50052"],
    "inference_address": [],
    "replay.n_step": [],
    "replay.error_buffer": ["--replay.samples-per-insert=2"],
    "replay.sequence_length": ["--replay.entry=rollouts"],
    "replay.burn_in": ["--replay.entry=rollouts", "--replay.sequence-length=8"],
}
# `--resume auto` begins a new run where there is none to resume.
UNWALKED = {"resume"}
UNITS = (
    "seconds|days|bytes|steps|rollouts|episodes|updates|actors|evaluators|environments|entries|samples|versions|passes|"
    "connections|calls|threads|cores|checkpoints|evaluations|critics|frames|epsilons|deviations|nats?|times|units?|returns|"
    "observations|restarts"
)
# Numbers without a dimension that are no share of one, by the ends of their names.
DIMENSIONLESS = {
    "learning_rate": "a factor of the gradient",
    "epsilon": "beside a root mean square of gradients",
    "max_grad_norm": "of the gradient of a loss that is dimensionless",
    "value_cost": "a weight",
    "reward_scale": "a factor",
    "clip_rho": "importance weights are ratios",
    "clip_c": "importance weights are ratios",
    "clip_pg_rho": "importance weights are ratios",
    "clip_range": "importance weights are ratios",
    "seed": "a name",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Walked:
    """An option of a command.

    Attributes:
        command: The command.
        option: The option.
        field: Its field.
    """

    command: str
    option: Option
    field: FieldInfo

    @property
    def name(self) -> str:
        return ".".join(self.option.path)

    @property
    def declaration(self) -> tuple[object, ...]:
        """The same for commands that share the option."""
        return self.option.path, str(self.field), self.option.positional

    @property
    def kind(self) -> Any:
        return bare_type(self.field.annotation)

    @property
    def number(self) -> type | None:
        """int or float, also of a list's members; None: it is no number."""
        kind = bare_type(get_args(self.kind)[0]) if get_origin(self.kind) in (tuple, list) else self.kind
        return kind if kind in (int, float) else None

    def takes(self, value: object) -> bool:
        """Returns True if the type takes a value, beside everything else."""
        annotation = self.field.rebuild_annotation()
        model = type(
            "One", (BaseModel,), {"__annotations__": {"one": annotation}, "model_config": {"allow_inf_nan": False}}
        )
        try:
            TypeAdapter(model).validate_python({"one": value})
        except ValidationError:
            return False
        return True

    def first(self, candidates: Iterable[Any]) -> Any:
        """Returns the first value that the type takes, and that is not the default."""
        for candidate in candidates:
            if candidate != self.option.default and self.takes(candidate):
                return candidate
        pytest.fail(f"rollcast {self.command}: {self.name} has a type that this walk cannot fill: {self.kind}")


def _fields(settings: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    for name, field in settings.model_fields.items():
        kind = bare_type(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, (*prefix, name))
        else:
            yield (*prefix, name), field


@functools.cache
def walked(command: str) -> tuple[Walked, ...]:
    process = COMMANDS[command].settings()
    fields = dict(_fields(process))
    return tuple(Walked(command=command, option=option, field=fields[option.path]) for option in options_of(process))


@functools.cache
def walked_here(command: str) -> tuple[Walked, ...]:
    """Returns the options of a command that no command before it has, too."""
    before = {}
    for earlier in COMMANDS:
        own = [each for each in walked(earlier) if each.declaration not in before]
        if earlier == command:
            return tuple(own)
        before |= dict.fromkeys(each.declaration for each in own)
    raise AssertionError(command)


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    assert isinstance(request.param, str)
    return request.param


def test_an_option_says_its_unit(command: str):
    for each in walked(command):
        if each.number is None:
            continue
        says = each.option.description
        for suffix, unit in (("_s", "seconds"), ("_bytes", "bytes"), ("_steps", "steps")):
            if each.name.endswith(suffix):
                assert re.search(rf"\b{unit}\b", says, re.IGNORECASE), f"{each.name}: {says}"
        is_share = re.search(r"[\[(]0, 1[\])]|\bshare\b", says) is not None
        is_count = re.search(rf"\b({UNITS})\b", says, re.IGNORECASE) is not None
        assert is_share or is_count or each.name.endswith(tuple(DIMENSIONLESS)), f"{each.name}: {says}"


def test_numbers_without_a_dimension_are_options():
    """The table above has no more than it needs."""
    names = {each.name for command in COMMANDS for each in walked(command) if each.number}
    assert all(any(name.endswith(end) for name in names) for end in DIMENSIONLESS)


def _numbers(each: Walked) -> Iterator[float]:
    """Yields numbers near the default, and near the ends of the type."""
    kind, default = each.number, each.option.default
    assert kind is not None
    if isinstance(default, int | float) and math.isfinite(default):
        yield from (kind(default + 1), kind(default * 0.5), kind(default * 2), kind(default - 1))
    yield from (kind(1), kind(0.5), kind(2), kind(16))


def right(each: Walked) -> dict[str, Any]:
    """Returns a value as it is read, by each way to write it on the command line."""
    kind = each.kind
    if kind is bool:
        return {"true": True, "false": False}
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}
    if get_origin(kind) is dict:
        return {'{"a": [1, "x,y"]}': {"a": [1, "x,y"]}}
    if kind is Path:
        return {"a folder/file,1": Path("a folder/file,1")}
    if kind is SecretStr:
        return {"a-token-of-32-characters-or-more": SecretStr("a-token-of-32-characters-or-more")}
    if kind in (int, float):
        return {text: number for number in [each.first(_numbers(each))] for text in _spelt(number)}
    if get_origin(kind) in (tuple, list):
        if each.number is not None:
            members = get_origin(kind)((1000, 20))
            return {"1000,20": members, "[1000, 20]": members, "1k,2e1": members, "1_000, 0.02k": members}
        members = get_origin(kind)(map(bare_type(get_args(kind)[0]), ("one", "2")))
        return {"one,2": members, '["one", "2"]': members}
    assert kind is str, f"rollcast {each.command}: {each.name} has a type that this walk cannot fill: {kind}"
    text = each.first(
        [*(each.field.examples or ()), "localhost:4321", "a name", "a-name", "8:00:00", "16G", "a100:2", "--exclusive"]
    )
    return {text: text}


def _spelt(number: float) -> list[str]:
    """Returns ways in which people write a number."""
    if isinstance(number, int):
        in_thousands = f"{Decimal(number) / 1000:f}"
        return [str(number), f"{number}e0", f"{number}.0e+0", f"{in_thousands}k", f"{in_thousands}K", f"{number:_}"]
    return [str(number), f"{number:.17e}", f"{number:_}", f"+{number}"]


def _as_file(values: Mapping[Walked, Any], *, as_typed: bool) -> str:
    """Returns YAML of values; as people type it: numbers, lists and objects as on a command line, texts in quotes."""
    groups: dict[tuple[str, ...], list[str]] = {(): []}
    for each, value in values.items():
        *group, name = each.option.path
        in_quotes = not as_typed or each.kind in (str, Path, SecretStr)
        shown = json.dumps(value).replace("NaN", ".nan") if in_quotes else value
        groups.setdefault(tuple(group), []).append(f"{'  ' if group else ''}{name}: {shown}\n")
    return "".join("".join([f"{group[0]}:\n" if group else "", *lines]) for group, lines in groups.items())


def _at(settings: BaseModel, path: Iterable[str]) -> Any:
    return functools.reduce(getattr, path, settings)


def _rounds(ways: Mapping[Walked, list[Any]]) -> Iterator[dict[Walked, Any]]:
    """Yields texts to read together: each text of each option, but of numbers and lists of these some.

    Numbers of one type are read by the same code: each is written in two ways, and all ways are among those of a type.
    """
    n_rounds = max((2 if each.number else len(some) for each, some in ways.items()), default=0)
    for index in range(n_rounds):
        yield {each: some[(index + position) % len(some)] for position, (each, some) in enumerate(ways.items()) if some}


Source = Literal["command line", "variables", "file"]


def read(
    source: Source, command: str, texts: Mapping[Walked, Any], beside: list[str], *, as_typed: bool = True
) -> ProcessSettings:
    """Reads settings.

    Args:
        source: Where they come from.
        command: The command.
        texts: What is written there.
        beside: Further arguments.
        as_typed: Whether a file has texts as people type them, not values as they are.
    """
    arguments = [*beside]
    given = {each.option.path[0] for each in texts}
    arguments += [one for one in REQUIRED.get(command, []) if one[2:].partition("=")[0] not in given]
    with pytest.MonkeyPatch.context() as patch:
        if source == "command line":
            for each, text in texts.items():
                if each.kind is bool:
                    arguments.append(each.option.spellings[text != "true"])
                else:
                    arguments.append(f"{each.option.name}={text}")
        elif source == "variables":
            for each, text in texts.items():
                patch.setenv(variable_name(each.option.path), text)
        else:
            Path("settings.yaml").write_text(_as_file(texts, as_typed=as_typed), "utf-8")
            arguments += ["--config", "settings.yaml"]
        return COMMANDS[command].settings().from_command_line(f"rollcast {command}", arguments)


def _together(command: str) -> Iterator[tuple[list[str], list[Walked]]]:
    """Yields options that go together, with the arguments that they need."""
    process = COMMANDS[command].settings()
    algorithms = list(ALGORITHM_DEFAULTS) if "algorithm" in process.model_fields else [""]
    left = {each.option.path: each for each in walked_here(command) if not each.option.positional}
    left.pop(("algorithm",), None)  # each of them is given
    for algorithm in algorithms:
        arguments = [f"--algorithm={algorithm}"] if algorithm else []
        scope = process.help_scope(Origins(arguments=arguments, from_file={}))
        paths = [option.path for option in scope.options(process) if option.path in left]
        yield arguments, [left.pop(path) for path in paths if ".".join(path) not in ALONE]
        for path in paths:
            if path in left:
                needed = ALONE[".".join(path)]
                own = [one for one in needed if re.split("[=.]", one[2:])[0].replace("-", "_") in process.model_fields]
                yield [*arguments, *own], [left.pop(path)]


@pytest.mark.parametrize("source", get_args(Source))
def test_values_are_taken_as_people_write_them(command: str, source: Source):
    taken = set()
    for beside, options in _together(command):
        values = {each: right(each) for each in options if each.name not in UNWALKED}
        for texts in _rounds({each: list(ways) for each, ways in values.items()}):
            settings = read(source, command, texts, beside)
            for each, text in texts.items():
                assert _at(settings, each.option.path) == values[each][text], f"{each.name}, written as {text!r}"
        taken |= {each.name for each in options}
    assert taken >= {each.name for each in walked_here(command) if not each.option.positional} - {"algorithm"}


def _beyond(each: Walked) -> Iterator[float]:
    """Yields numbers just outside the bounds of a number."""
    annotations = get_args(each.field.annotation) or (each.field.annotation,)
    marks = [*each.field.metadata, *(mark for kind in annotations for mark in getattr(kind, "__metadata__", ()))]
    for bound in [one for mark in marks for one in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]:
        match bound:
            case Ge(ge=end):
                yield end - each.number(1)
            case Le(le=end):
                yield end + each.number(1)
            case Gt(gt=end) | Lt(lt=end):
                yield end


def wrong(each: Walked, source: Source) -> list[Any]:
    """Returns values that the option must not take, as the source has them."""
    kind, in_file = each.kind, source == "file"
    # a variable that is empty is none
    empty = [] if source == "variables" or (kind is str and each.option.default == "") else [""]
    not_utf8 = [] if in_file else [os.fsdecode(b"a/\xff")]
    if kind is bool:
        return {"command line": [], "variables": ["maybe", "2"], "file": ["maybe", 2, [1], ""]}[source]
    if get_origin(kind) is Literal:
        return ["no such choice", *empty, *([3, [1], {"a": 1}] if in_file else [])]
    if get_origin(kind) is dict:
        return ["x", "[]", "3", "null", "a=3", "{", *empty, *([3, [1]] if in_file else ["[" * 100_000])]
    if kind is SecretStr:
        return [3, [1], {"a": 1}, True, "a\0b"] if in_file else empty
    if kind is Path:
        return ["", 3, [1], {"a": 1}, True, "a\0b"] if in_file else [*empty, *not_utf8]
    if each.number is not None:
        beyond = list(map(str, _beyond(each)))
        return [*beyond, *(beyond if in_file else []), *_no_numbers(each, empty, in_file=in_file)]
    if get_origin(kind) in (tuple, list):
        return [{"a": 1}, [3]] if in_file else not_utf8
    refused = [text for text in ("no such thing", "a:b:c", "-%", "'", "\n") if not each.takes(text)]
    return [*refused[:2], *empty, *not_utf8, *([3, {"a": 1}, True, "a\0b"] if in_file else [])]


def _no_numbers(each: Walked, empty: list[str], *, in_file: bool) -> list[Any]:
    """Returns four values that no number of the option's type can be; those of many options are all of them."""
    every = ["x", "nan", "-inf", "true", "5 seconds", "0x10", "1,5" if each.kind in (int, float) else "1 5"]
    every += ["2.5", "inf", "1e400", "9" * 500, "1e30"] if each.number is int else []
    every += [*empty, *([math.nan, True, {"a": 1}, [[1]]] if in_file else [])]
    begin = sum(map(ord, each.name))
    return [every[(begin + 3 * index) % len(every)] for index in range(4)]


@pytest.mark.parametrize("source", get_args(Source))
def test_a_wrong_value_is_one_line_with_its_name_its_source_and_what_was_expected(command: str, source: Source):
    values = {each: wrong(each, source) for each in walked_here(command) if not each.option.positional}
    # a recipe is read before all else, and a run to resume looked for after all else
    first_and_last = [{each: values.pop(each)} for each in [*values] if each.name in ("recipe", "resume")]
    for several in (values, *first_and_last):
        for index in range(max(map(len, several.values()), default=0)):
            given = {each: some[index] for each, some in several.items() if index < len(some)}
            with pytest.raises(ConfigurationError) as caught:
                read(source, command, given, [], as_typed=False)
            lines = str(caught.value).splitlines()
            assert len(lines) == len(given)
            by_name = {re.split("[: ]", line)[0]: line for line in lines}
            for each, value in given.items():
                _check_line(by_name[each.option.name], each, value, source)


def _check_line(line: str, each: Walked, value: object, source: Source) -> None:
    """Checks what is said of a wrong value."""
    where = {
        "command line": "",
        "variables": f" (from {variable_name(each.option.path)})",
        "file": " (from 'settings.yaml')",
    }[source]
    assert re.match(rf"{each.option.name}.*{re.escape(where)}: .*expected ", line), f"{each.name}={value!r}: {line}"
    if isinstance(value, str) and get_origin(each.kind) is not dict:
        assert ("what is given" if each.name == "token" else repr(value)[:150]) in line


def test_infinity_is_a_number_where_the_help_says_so(command: str):
    for each in walked_here(command):
        if each.number is float:
            says_so = re.search(r"\binf\b", each.option.description) is not None
            assert each.takes(math.inf) is says_so, each.name
            assert not each.takes(math.nan), each.name
            assert not each.takes(-math.inf), each.name
