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
    """The environment: settings of every process that makes one."""

    env_id: str = Field(
        "CartPole-v1",
        description="A gymnasium id, or package.module:factory for your own environment.",
        json_schema_extra=stays("another environment is another task"),
    )
    env_kwargs: EntryPointKwargs = Field(
        default_factory=dict,
        description="Keyword arguments of the environment, as JSON: '{\"gravity\": 9.8}'.",
        json_schema_extra=stays("they make another environment, which is another task"),
    )
    agent_policies: Literal["shared", "separate"] = Field(
        "shared",
        description="For PettingZoo's environments: agents with equal spaces share one policy (shared), or each agent "
        "has its own (separate).",
        json_schema_extra=stays("it says which policies there are"),
    )


class ActingSettings(EnvironmentSettings):
    """How environments are stepped: settings of every process that acts."""

    vectorization: Literal["auto", "sync", "entry_point", "subprocess", "measure"] = Field(
        "auto",
        description="How an actor steps its environments. auto: with the environment's own vector_entry_point if "
        "there is one, else like sync. sync: one after the other. entry_point: with the vector_entry_point, or an "
        "error if there is none. subprocess: in processes, one for each core. measure: tries sync and subprocess, and "
        "takes the faster.",
        json_schema_extra=ACTING,
    )
    on_step_failure: Literal["fail", "drop_episode"] = Field(
        "fail",
        description="What happens when an environment raises in a step. fail: its actor fails. drop_episode: the "
        "traceback is logged, the episode is dropped, and the environment is reset.",
        json_schema_extra=FREE,
    )
    step_timeout_s: Annotated[float, Field(gt=0)] = Field(
        300.0,
        description="How long a step or a reset of an actor's environments may take, in seconds. An actor that takes "
        "longer is ended, and the learner is told where it hangs.",
        json_schema_extra=FREE,
    )


class ActorSettings(ActingSettings, ClientSecuritySettings):
    """Steps environments with the newest policy and streams the rollouts to a learner."""

    first_options: ClassVar = (
        *("learner_address", "env_id", "env_kwargs", "actor_id", "envs_per_actor", "network", "vectorization"),
        *("connect_timeout_s", "reconnect_timeout_s", "tls_ca", "token_file", "log_level"),
    )

    learner_address: str = Field("localhost:50051", description="The learner's address: host:port or unix:/path.")
    actor_id: Annotated[str, AfterValidator(_expand_name)] = Field(
        "{host}-{pid}",
        description="This actor's name; {host} stands for the name of the machine, {pid} for the number of the "
        "process. An actor that is started again with the same name keeps its slot.",
    )
    envs_per_actor: EnvsPerActor | None = Field(
        None,
        description="Number of environments to step at once, with one batched forward pass. Empty: the number that "
        "suits the learner's algorithm.",
    )
    network: str = Field(
        "auto",
        description="The policy network this actor may build: auto, or package.module:factory. It must be the "
        "learner's network; an actor never imports another one.",
    )
    connect_timeout_s: Annotated[float, Field(gt=0)] = Field(
        60.0, description="How long to try to join the learner at the start, in seconds."
    )
    reconnect_timeout_s: Annotated[float, Field(gt=0)] = Field(
        600.0, description="How long to try to join a lost learner again, in seconds."
    )
    max_rollout_bytes: Annotated[int, Field(gt=0)] = Field(
        DEFAULT_LIMITS.max_rollout_bytes,
        description="The largest rollout this actor makes, in bytes. If the learner asks for more, the actor ends with "
        "an error. Raise it together with the learner's --limits.max-rollout-bytes.",
    )
    wait_for_next_run: bool = Field(
        False,
        description="When training has ended, wait for the learner's next run instead of exiting.",
    )
    torch_threads: Annotated[int, Field(ge=1)] = Field(
        1, description="Number of threads for torch and the linear algebra library."
    )
    heartbeat_file: str = Field(
        "",
        description="A file for health checks, touched every second while the actor works or awaits a learner.",
    )
    log_level: LogLevel = Field("INFO", description="The lowest level to log to stderr.")
