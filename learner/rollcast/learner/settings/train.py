"""The settings of `rollcast train`. Imports neither torch nor grpc."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt

from rollcast.actor.settings import DIALLED_IN, ActingSettings, DialInSettings
from rollcast.learner.settings.learning import FIRST_OF_LEARNING, LearnerSettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.addresses import ListeningAddress, WebAddress
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.resume_rules import ACTING, FREE, LEARNING, stays
from rollcast.services.settings.setting import setting


class TrainSettings(ActingSettings, LearnerSettings, DialInSettings):
    """Trains with actors on this machine: starts the learner and its actors, and ends them after training."""

    first_options: ClassVar = (
        "env_id",
        "env_kwargs",
        "serve_environments",
        "n_actors",
        *FIRST_OF_LEARNING,
        "log_level",
    )

    address: ListeningAddress = setting(
        "localhost:0",
        "The address to serve the API on: host:port (port 0: any free port). Actors on other machines may connect to "
        "it, too. Local actors use a separate Unix socket.",
        FREE,
    )
    bounded_staleness: bool = setting(
        True,
        "Make actors wait for the newest policy before each rollout. If actors are equally fast, no rollout is then "
        "more than ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / batch_size) versions old. On one "
        "machine this costs little.",
        LEARNING,
    )
    n_actors: Annotated[int, Field(ge=1, le=1024)] = setting(2, "Number of actors on this machine.", ACTING)
    actor_kind: Literal["subprocess", "sequential"] = setting(
        "subprocess",
        "subprocess: a process for each actor; sequential: all actors in the learner's own thread, which is "
        "bit-identical every time.",
        stays("the checkpoint has the state of that kind of actors"),
    )
    dashboard: bool = setting(
        False, "Serve a web page that shows the run, and print its link; needs the extra `dashboard`.", FREE
    )
    dashboard_address: WebAddress = setting(
        "localhost:0", "The address of the page of --dashboard: host:port (port 0: any free port).", FREE
    )
    start_method: Literal["forkserver", "spawn", "fork"] | None = setting(
        None, "Start method of actor processes. Default: forkserver where available, else spawn.", FREE
    )
    on_actor_failure: Literal["restart", "fail"] = setting(
        "restart",
        "Action when an actor fails. restart: start it again, after a growing delay; fail: end the run.",
        FREE,
    )
    max_restarts: NonNegativeInt = setting(
        10,
        "Number of restarts of an actor after consecutive failures. The next failure ends the run. 0: the first "
        "failure ends the run.",
        FREE,
    )

    def actors_of_a_batch(self) -> int:
        """See `LearnerSettings.actors_of_a_batch`.

        IMPALA learns from each step once, so an update for every half of the actors gets further; the rollouts are then
        up to three versions old. In deterministic mode, all actors contribute.
        """
        n_actors = 1 if self.serve_environments is not None else self.n_actors
        return math.ceil(n_actors / 2) if self.algorithm == "impala" and not self.deterministic else n_actors

    def completed(self, origins: Origins) -> Self:
        """See `LearnerSettings.completed`. If environments dial in, there is one actor and no known environment.

        Raises:
            ConfigurationError: Also if a given setting needs an environment in this process.
        """
        settings = super().completed(origins)
        if settings.serve_environments is None:
            return settings
        self.refuse_made_environments(self.model_fields_set)
        settings = settings.model_copy(
            update={"env_id": DIALLED_IN, **({} if "n_actors" in self.model_fields_set else {"n_actors": 1})}
        )
        for option, is_given, expected in (
            (
                f"--n-actors {settings.n_actors}",
                settings.n_actors != 1,
                "1, at which all clients dial in; start more with `rollcast actor`, each with its own address",
            ),
            (
                "--actor-kind sequential",
                settings.actor_kind == "sequential",
                "subprocess, since clients are answered while the learner learns",
            ),
            ("--deterministic", settings.deterministic, "one of the two, since clients decide when they step"),
        ):
            if is_given:
                raise ConfigurationError(
                    f"{option} with --serve-environments {settings.serve_environments}; expected {expected}; leave it "
                    "out"
                )
        return settings
