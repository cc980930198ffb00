"""The settings of an actor process."""

import os
import socket
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_ENVS_PER_ACTOR
from rollcast.services.security.settings import ClientSecuritySettings
from rollcast.services.settings.resume_rules import ACTING, FREE, stays
from rollcast.services.settings.settings import EntryPointKwargs, LogLevel, ProcessSettings

EnvsPerActor = Annotated[int, Field(ge=1, le=MAX_ENVS_PER_ACTOR)]


def _expand_name(name: str) -> str:
    return name.replace("{host}", socket.gethostname()).replace("{pid}", str(os.getpid()))


class EnvironmentSettings(ProcessSettings):
    """Which environment: shared by every process that makes one."""

    env_id: str = Field(
        "CartPole-v1",
        description="A gymnasium id, or package.module:factory for one's own.",
        json_schema_extra=stays("another environment is another task"),
    )
    env_kwargs: EntryPointKwargs = Field(
        default_factory=dict,
        description="Keyword arguments of the environment, as JSON: '{\"gravity\": 9.8}'.",
        json_schema_extra=stays("they make another environment, which is another task"),
    )
    agent_policies: Literal["shared", "separate"] = Field(
        "shared",
        description="For PettingZoo's environments: agents with equal spaces have one policy (shared), or each agent "
        "its own (separate).",
        json_schema_extra=stays("it says which policies there are"),
    )


class ActingSettings(EnvironmentSettings):
    """How environments are stepped: shared by every process that acts."""

    vectorization: Literal["auto", "sync", "entry_point", "subprocess", "measure"] = Field(
        "auto",
        description="How an actor's environments are stepped: the environment's own vector_entry_point where it has "
        "one, else one after the other (auto); one after the other (sync); the vector entry point or an error "
        "(entry_point); in processes, one for each core (subprocess); or whichever of sync and subprocess is faster, "
        "found by trying (measure).",
        json_schema_extra=ACTING,
    )
    on_step_failure: Literal["fail", "drop_episode"] = Field(
        "fail",
        description="What happens when an environment raises in a step: its actor fails (fail); or its episode is "
        "dropped, the traceback logged, and the environment reset (drop_episode).",
        json_schema_extra=FREE,
    )
    step_timeout_s: Annotated[float, Field(gt=0)] = Field(
        300.0,
        description="How long a step, or a reset, of an actor's environments may take before the actor is ended, in "
        "seconds; the learner is told where it hangs.",
        json_schema_extra=FREE,
    )


class ActorSettings(ActingSettings, ClientSecuritySettings):
    """Steps environments with the newest policy and streams the rollouts to a learner."""

    first_options: ClassVar = (
        *("learner_address", "env_id", "env_kwargs", "actor_id", "envs_per_actor", "network", "vectorization"),
        *("connect_timeout_s", "reconnect_timeout_s", "tls_ca", "token_file", "log_level"),
    )

    learner_address: str = Field("localhost:50051", description="Where the learner listens: host:port or unix:/path.")
    actor_id: Annotated[str, AfterValidator(_expand_name)] = Field(
        "{host}-{pid}",
        description="This actor's name, in which {host} is the host's and {pid} the process's number; one that is "
        "started again under its name keeps its slot.",
    )
    envs_per_actor: EnvsPerActor | None = Field(
        None,
        description="Environments it steps at once, in one batched forward pass; empty: as many as the learner's "
        "algorithm learns best from, which the learner says.",
    )
    network: str = Field(
        "auto",
        description="The policy network this actor may build: auto, or package.module:factory. It must be the "
        "learner's: a learner never makes an actor import anything else.",
    )
    connect_timeout_s: Annotated[float, Field(gt=0)] = Field(
        60.0, description="How long to wait for the learner at the start, in seconds."
    )
    reconnect_timeout_s: Annotated[float, Field(gt=0)] = Field(
        600.0, description="How long to wait for a learner that has gone away, in seconds."
    )
    max_rollout_bytes: Annotated[int, Field(gt=0)] = Field(
        DEFAULT_LIMITS.max_rollout_bytes,
        description="The largest rollout this actor makes, in bytes: a learner that asks for more is refused. "
        "Raise it with --limits.max-rollout-bytes of the learner.",
    )
    wait_for_next_run: bool = Field(
        False,
        description="When training has ended, wait for the learner's next run and act in it, instead of ending with 0.",
    )
    torch_threads: Annotated[int, Field(ge=1)] = Field(
        1, description="Threads of torch and of the linear algebra library."
    )
    heartbeat_file: str = Field(
        "",
        description="Touched every second while the actor lives, also while it waits for a learner; for health checks.",
    )
    log_level: LogLevel = Field("INFO", description="What to log, to stderr.")
