"""`rollcast evaluate RUN_DIR`: plays episodes with a policy that a run has saved."""

import dataclasses
import json
from typing import IO

from rollcast.actor.playing.evaluate import Evaluation, evaluate_policy
from rollcast.actor.policies.make import make_saved_policy
from rollcast.actor.threads import limit_threads
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.commands.printing import print_table
from rollcast.learner.playing.saved_play import played_environment
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.evaluate import EvaluateSettings


def evaluate(settings: EvaluateSettings, output: IO[str]) -> int:
    """Plays the episodes, prints the results, and returns the exit code.

    Raises:
        ConfigurationError: If the folder has no such policy, or the policy does not fit the environment.
    """
    run = RunDirectory.open(settings.run_dir)
    saved = run.read_policy(settings.saved_policy)
    env_factory = played_environment(settings, run.read_settings())
    spaces = probe_spaces(env_factory)
    policy = make_saved_policy(saved, spaces, seed=settings.seed, allowed_network=saved.spec.network)
    limit_threads(1)
    evaluation = evaluate_policy(
        env_factory,
        policy,
        n_episodes=settings.n_episodes,
        seed=settings.seed,
        deterministic=settings.deterministic,
        video_dir=settings.video,
    )
    _print(output, settings, evaluation, saved.policy_version, env_factory.env_id)
    if settings.summary_json is not None:
        played = {
            "policy": settings.saved_policy,
            "policy_version": saved.policy_version,
            "actions": "likeliest" if settings.deterministic else "drawn",
        }
        text = json.dumps(played | dataclasses.asdict(evaluation), indent=2)
        settings.summary_json.write_text(text + "\n", encoding="utf-8")
    return 0


def _print(output: IO[str], settings: EvaluateSettings, evaluation: Evaluation, version: int, env_id: str) -> None:
    low, high = evaluation.confidence_interval
    rows = [
        ("policy", f"{settings.saved_policy}, version {version}, on {env_id}"),
        ("episodes", f"{settings.n_episodes}"),
        ("actions", "the likeliest" if settings.deterministic else "drawn from the policy"),
        ("mean return", f"{evaluation.mean:.2f}"),
        ("std", f"{evaluation.std:.2f}"),
        ("95 % confidence", f"{low:.2f} to {high:.2f} (Student's t)"),
        ("mean length", f"{sum(evaluation.lengths) / len(evaluation.lengths):.1f} steps"),
    ]
    if len(evaluation.agent_returns) > 1:
        rows += [(f"  {agent}", f"{mean:.2f}") for agent, mean in evaluation.agent_returns.items()]
    if settings.video is not None:
        rows.append(("video", str(settings.video)))
    print_table(output, rows)
