"""Reasons to refuse a run, as the documentation says them: written apart from the code that refuses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gymnasium import spaces

from tests.matrix import environments
from tests.matrix.axes import OWN_FRESH, OWN_NETWORK, OWN_REPLAYED, Case, n_substeps, replays

_DISCRETE: Final = ("discrete", "discrete, from 1")
_IMAGES: Final = ("image", "image, channels first", "dict")
_IMAGE_NETWORKS: Final = ("nature_cnn", "impala_shallow", "impala_resnet")
_OF_VALUES: Final = ("dqn", "r2d2", OWN_REPLAYED)
_WITHOUT_MEMORY: Final = ("sac", "dqn", OWN_FRESH, OWN_REPLAYED)


@dataclass(frozen=True, slots=True)
class Rule:
    """A reason to refuse.

    Attributes:
        says: A part of the line with which a run is refused.
        words: What is refused, for the documentation; "": its table of algorithms or another rule has it.
        on: The names of the axes that it is about.
        holds: Returns whether a case is refused for it.
    """

    says: str
    words: str
    on: tuple[str, ...]
    holds: Callable[[Case], bool]


def _supported_observation(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return all(_supported_observation(member) for member in space.values())
    if isinstance(space, spaces.Tuple):
        return all(_supported_observation(member) for member in space)
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _supported_action(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Box):
        return space.dtype.kind == "f"
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _has_floats(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return any(_has_floats(member) for member in space.values())
    if isinstance(space, spaces.Tuple):
        return any(_has_floats(member) for member in space)
    return isinstance(space, spaces.Box) and space.dtype.kind == "f"


def _action(case: Case) -> spaces.Space:
    return environments.ACTIONS[str(case["env.action"])]


def _observation(case: Case) -> spaces.Space:
    return environments.OBSERVATIONS[str(case["env.observation"])]


def _sees_images(case: Case) -> bool:
    """Returns whether every agent sees an image: in games of different agents the second does not."""
    seen = case["env.observation"]
    return (seen in _IMAGES or (seen == "grey image" and case["frame_stack"] != 1)) and case[
        "env.agents"
    ] != "different"


def _ends_by_evaluation(case: Case) -> bool:
    return case["stop_on"] == "eval" or case["eval_patience"] is not None


RULES: Final = (
    Rule(
        "is not supported; expected Box, Discrete",
        "observations of Text, Sequence, Graph or OneOf",
        ("env.observation",),
        lambda case: not _supported_observation(_observation(case)),
    ),
    Rule(
        "wrap the environment so that it",
        "actions of Dict, Tuple, Text, Sequence, Graph, OneOf, or a Box of integers",
        ("env.action",),
        lambda case: not _supported_action(_action(case)),
    ),
    Rule(
        "SAC supports Box and Discrete",
        "",
        ("algorithm", "env.action"),
        lambda case: case["algorithm"] == "sac" and case["env.action"] in ("multi-discrete", "multi-binary"),
    ),
    Rule(
        "a squashed Gaussian needs a Box",
        "",
        ("algorithm", "env.action"),
        lambda case: case["algorithm"] == "sac" and case["env.action"] == "box without bounds",
    ),
    Rule(
        "Q-values need Discrete",
        "",
        ("algorithm", "env.action"),
        lambda case: (
            case["algorithm"] in _OF_VALUES and case["env.action"] not in _DISCRETE and _supported_action(_action(case))
        ),
    ),
    Rule(
        "'action_mask'",
        "an action mask, with actions that are neither Discrete nor MultiDiscrete",
        ("env.mask", "env.action"),
        lambda case: (
            case["env.mask"] != "none"
            and _supported_action(_action(case))
            and case["env.action"] not in (*_DISCRETE, "multi-discrete")
        ),
    ),
    Rule(
        "which cannot train recurrent policies",
        "",
        ("recurrence", "algorithm"),
        lambda case: case["recurrence"] != "none" and case["algorithm"] in _WITHOUT_MEMORY,
    ),
    Rule(
        "expected a built-in network, because only these can be recurrent",
        "`--recurrence` with your own network",
        ("recurrence", "network"),
        lambda case: case["recurrence"] != "none" and case["network"] == OWN_NETWORK,
    ),
    Rule(
        "which learns recurrent policies",
        "`--recurrence none` with R2D2",
        ("recurrence", "algorithm"),
        lambda case: case["recurrence"] == "none" and case["algorithm"] == "r2d2",
    ),
    Rule(
        "which cannot stack the frames",
        "`--frame-stack` or `--recurrence` with your own algorithm, unless it declares support",
        ("frame_stack", "algorithm"),
        lambda case: case["frame_stack"] != 1 and case["algorithm"] == OWN_FRESH,
    ),
    Rule(
        "--normalize-observations, and observations are",
        "`--normalize-observations` without a Box of floats among the observations",
        ("normalize_observations", "env.observation"),
        lambda case: bool(case["normalize_observations"]) and not _has_floats(_observation(case)),
    ),
    Rule(
        "expected an image among the observations",
        "a network of images without an image among the observations of each policy",
        ("network", "env.observation", "frame_stack", "env.agents"),
        lambda case: case["network"] in _IMAGE_NETWORKS and not _sees_images(case),
    ),
    Rule(
        "share_torso: the network is",
        "`share_torso` with a recurrent policy, without an image, or without a network for images",
        (".share_torso", "recurrence", "network", "env.observation", "frame_stack", "env.agents"),
        lambda case: (
            case.get(".share_torso") is True
            and (not _sees_images(case) or case["recurrence"] != "none" or case["network"] in ("mlp", OWN_NETWORK))
        ),
    ),
    Rule(
        "the substeps need policies with different heads",
        "SAC with Box actions in one substep and Discrete ones in another",
        ("algorithm", "env.action", "env.agents"),
        lambda case: (
            case["algorithm"] == "sac"
            and case["env.agents"] == "different actions"
            and case["env.action"] in ("box", "box of float64")
        ),
    ),
    Rule(
        "layer norm for critics without hidden layers",
        "`--sac.critic-layer-norm` with your own network, or with Discrete actions and images",
        (".critic_layer_norm", "network", "env.action", "env.observation", "frame_stack", "env.agents"),
        lambda case: (
            case.get(".critic_layer_norm") is True
            and (
                case["network"] == OWN_NETWORK
                or (case["env.action"] in _DISCRETE and _sees_images(case) and case["network"] != "mlp")
            )
        ),
    ),
    Rule(
        "--precision tf32",
        "`--precision tf32` and `--cuda-graphs on` on a CPU",
        ("precision",),
        lambda case: case["precision"] == "tf32",
    ),
    Rule(
        "--cuda-graphs on",
        "",
        ("cuda_graphs",),
        lambda case: case["cuda_graphs"] == "on",
    ),
    Rule(
        "--batch-ahead on with",
        "`--batch-ahead on` with sequential actors, `--deterministic`, PPO or a replay buffer; with `--max-policy-lag` "
        "and several substeps",
        ("batch_ahead", "actor_kind", "deterministic", "algorithm", "max_policy_lag", "env.agents", "agent_policies"),
        lambda case: (
            case["batch_ahead"] == "on"
            and bool(
                case["actor_kind"] == "sequential"
                or case["deterministic"]
                or case["algorithm"] == "ppo"
                or replays(case)
                or (case["max_policy_lag"] is not None and n_substeps(case) > 1)
            )
        ),
    ),
    Rule(
        "deterministic collecting of the substeps",
        "`--deterministic` with several substeps",
        ("deterministic", "env.agents", "agent_policies"),
        lambda case: bool(case["deterministic"]) and n_substeps(case) > 1,
    ),
    Rule(
        "--deterministic with --algorithm",
        "`--deterministic` with `--updates-per-broadcast` above 1 and without a replay buffer",
        ("deterministic", "updates_per_broadcast", "algorithm"),
        lambda case: bool(case["deterministic"]) and not replays(case) and case["updates_per_broadcast"] != 1,
    ),
    Rule(
        "--policy-rounding bfloat16 with --deterministic",
        "`--deterministic` with `--policy-rounding bfloat16` or `--durable`",
        ("deterministic", "policy_rounding"),
        lambda case: bool(case["deterministic"]) and case["policy_rounding"] != "none",
    ),
    Rule(
        "--deterministic with a replay buffer and without",
        "`--deterministic` or sequential actors with a replay buffer and without a limiter "
        "(`--replay.samples-per-insert`)",
        ("deterministic", "replay.samples_per_insert of your own"),
        lambda case: bool(case["deterministic"]) and case.get("replay.samples_per_insert of your own") is False,
    ),
    Rule(
        "--durable with --deterministic",
        "",
        ("deterministic", "durable"),
        lambda case: bool(case["deterministic"] and case["durable"]),
    ),
    Rule(
        "--durable with --actor-kind sequential",
        "`--durable` with sequential actors",
        ("durable", "actor_kind"),
        lambda case: bool(case["durable"]) and case["actor_kind"] == "sequential",
    ),
    Rule(
        "--durable with --algorithm ppo",
        "",
        ("durable", "algorithm"),
        lambda case: bool(case["durable"]) and case["algorithm"] == "ppo",
    ),
    Rule(
        "with the substeps",
        "",
        ("algorithm", "env.agents", "agent_policies"),
        lambda case: case["algorithm"] == "ppo" and n_substeps(case) > 1,
    ),
    Rule(
        "--algorithm ppo with --updates-per-broadcast",
        "",
        ("algorithm", "updates_per_broadcast"),
        lambda case: case["algorithm"] == "ppo" and case["updates_per_broadcast"] != 1,
    ),
    Rule(
        "--algorithm ppo with --max-policy-lag",
        "",
        ("algorithm", "max_policy_lag"),
        lambda case: case["algorithm"] == "ppo" and case["max_policy_lag"] is not None,
    ),
    Rule(
        "without an evaluation",
        "`--stop-on eval` and `--eval-patience` without evaluations; with `--deterministic` and actors in processes",
        ("eval_interval_steps", "stop_on", "eval_patience"),
        lambda case: _ends_by_evaluation(case) and case["eval_interval_steps"] is None,
    ),
    Rule(
        "--eval-opponents",
        "`--eval-opponents` without evaluations, with one agent, or with `--eval-actions both`",
        ("eval_interval_steps", "eval_opponents", "env.agents", "eval_actions"),
        lambda case: (
            case["eval_opponents"] is not None
            and (case["eval_interval_steps"] is None or case["env.agents"] == "one" or case["eval_actions"] == "both")
        ),
    ),
    Rule(
        "has no distribution to draw from",
        "`--eval-actions drawn` and `both` with DQN and R2D2",
        ("eval_actions", "algorithm"),
        lambda case: case["eval_actions"] != "likeliest" and case["algorithm"] in _OF_VALUES,
    ),
    Rule(
        "expected evaluations by --eval-interval-steps",
        "",
        ("deterministic", "actor_kind", "stop_on", "eval_patience"),
        lambda case: _ends_by_evaluation(case) and bool(case["deterministic"]) and case["actor_kind"] == "subprocess",
    ),
    Rule(
        "vectorization is 'entry_point'",
        "`--vectorization entry_point` for an environment without a registered vector entry point",
        ("vectorization", "env.is_registered"),
        lambda case: case["vectorization"] == "entry_point" and not case.get("env.is_registered"),
    ),
    Rule(
        "structured",
        "`--vectorization subprocess` and `measure` with several agents or substeps",
        ("vectorization", "env.agents"),
        lambda case: case["vectorization"] in ("subprocess", "measure") and case["env.agents"] != "one",
    ),
    Rule(
        "--replay.entry:",
        "",
        ("replay.entry", "algorithm"),
        lambda case: case.get("replay.entry") == "rollouts" and case["algorithm"] in ("sac", "dqn", OWN_REPLAYED),
    ),
    Rule(
        "--replay.entry:",
        "",
        ("replay.entry", "algorithm"),
        lambda case: case.get("replay.entry") == "transitions" and case["algorithm"] == "r2d2",
    ),
    Rule(
        "n-step is 3 with entry 'rollouts'",
        "`--replay.n-step` above 1 with `--replay.entry rollouts`",
        ("replay.entry", "replay.n_step"),
        lambda case: case.get("replay.entry") == "rollouts" and case["replay.n_step"] != 1,
    ),
    Rule(
        "--actor-kind sequential with a replay buffer and without",
        "",
        ("replay.samples_per_insert of your own", "actor_kind", "replay.max_times_sampled"),
        lambda case: (
            case.get("replay.samples_per_insert of your own") is False
            and case["actor_kind"] == "sequential"
            and case["replay.max_times_sampled"] is None
        ),
    ),
    Rule(
        ".minibatch-steps: 4096",
        "`--ppo.minibatch-steps` and `--appo.minibatch-steps` above the steps of a batch",
        (".minibatch_steps",),
        lambda case: case.get(".minibatch_steps") == 4096,
    ),
    Rule(
        "error-buffer is",
        "`--replay.error-buffer` without a limiter",
        ("replay.samples_per_insert of your own", "replay.error_buffer"),
        lambda case: (
            case.get("replay.samples_per_insert of your own") is False and case["replay.error_buffer"] is not None
        ),
    ),
)


def reasons(case: Case) -> list[Rule]:
    """Returns the rules for which a case is refused; none: it trains."""
    return [rule for rule in RULES if rule.holds(case)]
