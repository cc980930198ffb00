"""`rollcast evaluate RUN_DIR`: plays episodes with a run's saved policy."""

import dataclasses
import json
from collections.abc import Mapping
from typing import IO

from rollcast.actor.playing.evaluate import Evaluation, better_actions, evaluate_as_planned
from rollcast.actor.policies.make import make_saved_policy
from rollcast.actor.threads import limit_threads
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.commands.printing import print_table
from rollcast.learner.playing.saved_play import played_environment
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.evaluate import EvaluateSettings
from rollcast.services.joining.evaluation import EvalActions, EvaluationActions, EvaluationPlan
from rollcast.services.settings.new_files import check_new_file, write_new_file
from rollcast.services.status.numbers import decimal


def evaluate(settings: EvaluateSettings, output: IO[str]) -> int:
    """Plays the episodes, prints the results, and returns the exit code.

    Raises:
        ConfigurationError: If the policy does not exist, or does not fit the environment, or a file cannot be written.
    """
    check_new_file(settings.summary_json, "--summary-json", is_renamed=False)
    run = RunDirectory.open(settings.run_dir)
    saved = run.read_policy(settings.saved_policy)
    trained = run.read_settings()
    env_factory = played_environment(settings, trained)
    spaces = probe_spaces(env_factory)
    policy = make_saved_policy(saved, spaces, seed=settings.seed, allowed_network=saved.spec.network)
    limit_threads(1)
    # Older runs have none.
    asked: EvalActions = settings.eval_actions or trained.get("eval_actions", "likeliest")
    plan = EvaluationPlan(
        n_episodes=settings.n_episodes, seed=settings.seed, actions=EvaluationActions.of_option(asked)
    )
    played = evaluate_as_planned(env_factory, policy, plan, video_dir=settings.video)
    if settings.summary_json is not None:
        better = better_actions(played)
        summary = {
            "policy": settings.saved_policy,
            "policy_version": saved.policy_version,
            "actions": better.option,
            **dataclasses.asdict(played[better]),
        }
        if len(played) > 1:
            summary["by_actions"] = {kind.option: dataclasses.asdict(one) for kind, one in played.items()}
        write_new_file(settings.summary_json, "--summary-json", json.dumps(summary, indent=2) + "\n")
    # After the file, because the reader of the output may have ended.
    _print(
        output, settings, played, f"{settings.saved_policy}, version {saved.policy_version}, on {env_factory.env_id}"
    )
    return 0


def _print(
    output: IO[str], settings: EvaluateSettings, played: Mapping[EvaluationActions, Evaluation], policy: str
) -> None:
    rows = [("policy", policy)]
    for kind, evaluation in played.items():
        low, high = evaluation.confidence_interval
        rows += [
            ("episodes", f"{len(evaluation.returns)}"),
            ("actions", "greedy" if kind is EvaluationActions.LIKELIEST else "sampled from the policy"),
            ("mean return", decimal(evaluation.mean)),
            ("std", decimal(evaluation.std)),
            ("95 % confidence", f"{decimal(low)} to {decimal(high)} (Student's t)"),
            ("mean length", f"{sum(evaluation.lengths) / len(evaluation.lengths):.1f} steps"),
        ]
        if len(evaluation.agent_returns) > 1:
            rows += [(f"  {agent}", decimal(mean)) for agent, mean in evaluation.agent_returns.items()]
    if settings.video is not None:
        rows.append(("video", str(settings.video)))
    print_table(output, rows)
