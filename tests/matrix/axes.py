"""The choices of a user, and the values of each: read from the settings' own types and from the registries.

A case is one value of every axis that applies to it. Axes and values that are added to the settings belong to the
matrix from then on; a new option whose values cannot be read is an error that names it.
"""

import json
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollcast.learner.algorithms.defaults import ALGORITHM_DEFAULTS, groups_of
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.policies.policies import BUILT_IN_NETWORKS
from tests.matrix import environments

Value: TypeAlias = str | bool | int | float | None
Case: TypeAlias = Mapping[str, Value]

OWN_FRESH: Final = "tests.matrix.algorithms:OwnImpala"
OWN_REPLAYED: Final = "tests.matrix.algorithms:OwnDqn"
OWN_NETWORK: Final = "tests.matrix.networks:make"

# Of every case: T, the environments of an actor, and the actors.
N_STEPS, N_ENVS, N_ACTORS = 4, 2, 2
# Of every case with a replay buffer: entries of a batch.
N_SAMPLED = 8

# Options with choices that are no axis, and why.
NO_AXES: Final[Mapping[str, str]] = {
    "device": "what may be chosen depends on the machine: the CPU, or that of `--device`",
    "atari": "a game of its own, with tests of its own",
    "insecure": "who may connect has nothing to do with what is learnt",
    "dashboard": "watching changes nothing",
    "track": "trackers are elsewhere, and change nothing",
    "log_level": "says what is logged",
    "start_method": "how a process is started has tests of its own",
    "on_actor_failure": "no actor fails here",
    "learning_rate_schedule": "numbers only",
    "clip_range_schedule": "numbers only",
}
# Of options that may be left out (None), a value that is given instead; None: it is no axis.
_GIVEN: Final[Mapping[str, Value]] = {
    "max_policy_lag": 4,
    "eval_interval_steps": 16,
    "eval_patience": 50,
    "eval_opponents": 1,
    "checkpoint_interval_updates": 1,
    "batch_size": 0,  # see `arguments`
    ".entropy_cost_end": 0.01,
    ".minibatch_steps": 8,
    ".clip_range_value": 0.2,
    ".target_kl": 0.02,
    ".target_critics": 1,
    ".target_entropy": -1.0,
    ".epsilon_end": 0.05,
    "replay.max_times_sampled": 64,
    "replay.error_buffer": 1024.0,
    "replay.capacity_bytes": 10_000_000,
    # In every case, or by other axes: see `arguments`.
    **dict.fromkeys(("replay.sequence_length", "replay.samples_per_insert", "replay.min_size"), None),
    # Of no effect on what is computed, or of the clock.
    **dict.fromkeys(("metrics_address", "address_file", "tls_cert", "tls_key", "tls_client_ca", "tokens_file"), None),
    **dict.fromkeys(("serve_tls_cert", "serve_tls_key", "serve_tls_client_ca", "serve_tokens_file"), None),
    **dict.fromkeys(("serve_environments", "serve_websockets", "serve_batch_size"), None),
    **dict.fromkeys(("recipe", "run_dir", "summary_json", "resume", "stop_return", "eval_interval_s"), None),
    **dict.fromkeys(("initial_data", "initial_policy"), None),
}
# Numbers that switch something on.
_NUMBERS: Final[Mapping[str, tuple[Value, ...]]] = {
    ".minibatch_steps": (None, 8, 4096),
    "frame_stack": (1, 3),
    "updates_per_broadcast": (1, 3),
    "replay.n_step": (1, 3),
    ".n_critics": (2, 3),
    ".policy_update_interval": (1, 2),
    ".target_update_interval": (1, 3),
}


# The plainest value, where it is not the default.
_PLAIN: Final[Mapping[str, Value]] = {"actor_kind": "sequential"}


@dataclass(frozen=True, slots=True)
class Axis:
    """A choice.

    Attributes:
        name: The option's dotted name; `.name` for an option of the chosen algorithm's own; `env.name` for something
            about the environment.
        values: What may be chosen; the first value is the plainest.
        applies: Returns whether there is such a choice, from the axes before this one.
    """

    name: str
    values: tuple[Value, ...]
    applies: Callable[[Case], bool] = lambda case: True


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def _choices(annotation: Any) -> tuple[Value, ...] | None:
    """Returns the values that a type allows; None among them: it may be left out; no values: it is a number or text."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if annotation is bool:
        return False, True
    if annotation is type(None):
        return (None,)
    if get_origin(annotation) in (Union, types.UnionType):
        members = sorted((_choices(each) or () for each in get_args(annotation)), key=lambda each: each != (None,))
        return tuple(value for member in members for value in member)
    return None


def options_with_choices(settings: type[BaseModel] = TrainSettings) -> dict[str, tuple[Value, ...]]:
    """Returns the values of every option of `rollcast train` that has choices, or may be left out, by its name.

    Options of an algorithm's own have one name for all algorithms, as `.share_torso`.

    Raises:
        AssertionError: An option may be left out, and the matrix does not know what to give instead.
    """
    found: dict[str, tuple[Value, ...]] = {}
    for dotted, field in _fields(settings):
        group, _, last = dotted.rpartition(".")
        name = f".{last}" if group in ALGORITHM_DEFAULTS else dotted
        values = _choices(field.annotation)
        if values is None or last in NO_AXES:
            continue
        if values == (None,):
            assert name in _GIVEN, f"the option {dotted} may be left out: say in _GIVEN what is given instead"
            if _GIVEN[name] is None:
                continue
            values = (None, _GIVEN[name])
        plain = _PLAIN.get(name, field.default)
        default = (plain,) if plain in values else ()
        found[name] = tuple(dict.fromkeys((*default, *found.get(name, ()), *values)))
    return found


def _of_algorithm(name: str) -> Callable[[Case], bool]:
    """Returns whether an algorithm has an option of its own."""
    own = {
        algorithm
        for algorithm in ALGORITHM_DEFAULTS
        if name[1:] in TrainSettings.model_fields[algorithm].annotation.model_fields  # type: ignore[union-attr]
    }
    return lambda case: case["algorithm"] in own


def replays(case: Case) -> bool:
    """Returns whether the algorithm learns from a replay buffer."""
    algorithm = str(case["algorithm"])
    return algorithm != OWN_FRESH and "replay" in groups_of(algorithm)


def _applies(name: str) -> Callable[[Case], bool]:
    if name.startswith("."):
        return _of_algorithm(name)
    if name.startswith("replay."):
        return replays
    return (lambda case: case["env.agents"] != "one") if name == "agent_policies" else lambda case: True


def _axes() -> tuple[Axis, ...]:
    options = {**options_with_choices(), **_NUMBERS}
    return (
        Axis("algorithm", (*ALGORITHM_DEFAULTS, OWN_FRESH, OWN_REPLAYED)),
        Axis("env.action", tuple(environments.ACTIONS)),
        Axis("env.observation", tuple(environments.OBSERVATIONS)),
        Axis("env.mask", environments.MASKS),
        Axis("env.agents", environments.AGENTS),
        Axis("env.is_registered", (False, True), lambda case: case["env.agents"] == "one"),
        Axis("network", (*BUILT_IN_NETWORKS, OWN_NETWORK)),
        *(Axis(name, values, _applies(name)) for name, values in options.items()),
        Axis("replay.samples_per_insert", (4.0, 8.0), replays),
        Axis("replay.samples_per_insert of your own", (True, False), lambda case: case["algorithm"] == OWN_REPLAYED),
        Axis("replay.burn_in", (0, 1), lambda case: replays(case) and case["replay.entry"] == "rollouts"),
    )


AXES: Final = _axes()
BY_NAME: Final = {axis.name: axis for axis in AXES}


def completed(chosen: Case, choose: Callable[[Axis], Value]) -> Case:
    """Returns a case with the chosen values, and others for the axes that are not chosen.

    Args:
        chosen: The values of some axes. Those that do not apply are left out.
        choose: Returns the value of an axis.
    """
    case: dict[str, Value] = {}
    for axis in AXES:
        if axis.applies(case):
            case[axis.name] = chosen[axis.name] if axis.name in chosen else choose(axis)
    return case


def plainest(chosen: Case) -> Case:
    """Returns the case with the chosen values, and for the rest the algorithm's defaults, or the first of the axis."""
    own = ALGORITHM_DEFAULTS.get(str(chosen.get("algorithm")), {})
    defaults = {**own, **{f"replay.{name}": value for name, value in own.get("replay", {}).items()}}

    def choose(axis: Axis) -> Value:
        value = defaults.get(axis.name)
        return value if value in axis.values else axis.values[0]

    return completed({"algorithm": BY_NAME["algorithm"].values[0], **chosen}, choose)


def drawn(chosen: Case, generator: random.Random) -> Case:
    """Returns a case with the chosen values, and random ones for the rest."""
    return completed(chosen, lambda axis: generator.choice(axis.values))


def n_combinations() -> int:
    """Returns the number of all cases."""
    total = 0
    for algorithm in BY_NAME["algorithm"].values:
        for agents in BY_NAME["env.agents"].values:
            for entry in BY_NAME["replay.entry"].values:
                chosen = {"algorithm": algorithm, "env.agents": agents, "replay.entry": entry}
                case = plainest(chosen)
                if entry != BY_NAME["replay.entry"].values[0] and not replays(case):
                    continue
                n = 1
                for name in case.keys() - chosen.keys():
                    n *= len(BY_NAME[name].values)
                total += n
    return total


def n_agents(case: Case) -> int:
    """Returns the largest number of agents that share a substep."""
    shared = case["env.agents"] in ("at once", "in turns") and case["agent_policies"] == "shared"
    return 2 if shared else 1


def n_substeps(case: Case) -> int:
    """Returns the number of substeps."""
    return 1 if case["env.agents"] == "one" or n_agents(case) == 2 else 2


def batch_size(case: Case) -> int:
    """Returns B, as the documentation of `--batch-size` says."""
    if replays(case):
        return N_SAMPLED
    of_actor = N_ENVS * n_agents(case)
    if case["batch_size"] is not None or case["deterministic"]:
        return N_ACTORS * of_actor
    n_actors = N_ACTORS // 2 if case["algorithm"] == "impala" else N_ACTORS
    least = {"ppo": 16, "appo": 16}.get(str(case["algorithm"]), 4)
    return max(n_actors * of_actor, -(-least // of_actor) * of_actor)


def total_steps(case: Case) -> int:
    """Returns so many steps that each substep is learnt from twice at least."""
    if not replays(case):
        return 3 * N_STEPS * batch_size(case) * n_substeps(case)
    return (64 if case["replay.entry"] == "rollouts" else 24) * n_substeps(case)


def arguments(case: Case) -> list[str]:
    """Returns the arguments of `rollcast train`; those that say what a run without them does, too, are left out.

    But the algorithm is always named: what is said of a run depends on it.
    """
    environment = {name.removeprefix("env."): value for name, value in case.items() if name.startswith("env.")}
    is_registered = environment.pop("is_registered", False)
    if is_registered:
        del environment["agents"]
    given: dict[str, Any] = {
        "env_id": environments.REGISTERED_ID if is_registered else f"{environments.__name__}:make",
        "env_kwargs": json.dumps(environment),
        "device": "cpu",
        "torch_threads": 1,
        "n_rollout_steps": N_STEPS,
        "envs_per_actor": N_ENVS,
        "n_actors": N_ACTORS,
        "hidden_sizes": 8,
        "recurrent_size": 6,
        "collect_timeout_s": 30,
    }
    algorithm = str(case["algorithm"])
    if algorithm in ("ppo", "appo"):
        given[f"{algorithm}.n_epochs"] = 2
    own = ALGORITHM_DEFAULTS.get(algorithm, {})
    for name, value in case.items():
        if name.startswith("env.") or name == "batch_size" or " " in name or value is None:
            continue
        is_default = name not in own and name.split(".")[0] not in own and value == _default(name, algorithm)
        if not is_default or name == "algorithm":
            given[f"{algorithm}{name}" if name.startswith(".") else name] = value
    if case.get("eval_interval_steps") is not None:
        given["eval_episodes"] = 2
    if replays(case):
        given |= {"batch_size": N_SAMPLED, "replay.capacity": 64, "replay.min_size": N_SAMPLED}
        if case["replay.entry"] == "rollouts":
            given |= {
                "replay.burn_in": case["replay.burn_in"],
                "replay.sequence_length": N_STEPS - case["replay.burn_in"],
            }
        if case.get("replay.samples_per_insert of your own") is False:
            del given["replay.samples_per_insert"]
    elif case["batch_size"] is not None:
        given["batch_size"] = batch_size(case)
    return [word for name, value in given.items() for word in _option(name, value)]


def _default(name: str, algorithm: str) -> Any:
    dotted = f"{algorithm}{name}" if name.startswith(".") else name
    model: type[BaseModel] = TrainSettings
    *groups, last = dotted.split(".")
    for group in groups:
        model = model.model_fields[group].annotation  # type: ignore[assignment]
    return model.model_fields[last].default


def _option(name: str, value: Any) -> Sequence[str]:
    option = name.replace("_", "-")
    if value is True:
        return (f"--{option}",)
    return (f"--no-{option}",) if value is False else (f"--{option}", str(value))
