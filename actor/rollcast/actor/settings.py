"""The settings of an actor process."""

import os
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_ENVS_PER_ACTOR
from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.metrics.settings import MetricsSettings
from rollcast.services.policies.policies import PolicyEncodingName
from rollcast.services.process.installation import require_extra
from rollcast.services.security.settings import ServedSecuritySettings, ServingClientSecuritySettings
from rollcast.services.settings.addresses import ListeningAddress, ServerAddress, ServerAddresses, WebAddress
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.options import option_name
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.recipes import recipe_given, recipe_names
from rollcast.services.settings.resume_rules import ACTING, FREE, LEARNING, stays
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import EntryPointKwargs, LogLevel, ProcessSettings

if TYPE_CHECKING:
    from rollcast.actor.dialling.supply import DialIn
    from rollcast.actor.environments.make import EnvironmentFactory

# The name of environments that dial in, in place of an id.
DIALLED_IN: Final = "dialled-in"

EnvsPerActor = Annotated[int, Field(ge=1, le=MAX_ENVS_PER_ACTOR)]


def _expand_name(name: str) -> str:
    return name.replace("{host}", socket.gethostname()).replace("{pid}", str(os.getpid()))


def _check_device(name: str) -> str:
    if re.fullmatch("cpu|cuda(:[0-9]+)?", name) is None:
        raise ValueError("expected cpu, cuda, or cuda with the number of a device, such as cuda:0")
    return name


class EnvironmentSettings(ProcessSettings):
    """The environment settings of every process that makes environments."""

    env_id: str = setting(
        "CartPole-v1",
        "The environment: a gymnasium id, or package.module:factory for your own.",
        stays("another environment is another task"),
    )
    env_kwargs: EntryPointKwargs = setting(
        {},
        "Keyword arguments of the environment, as JSON: '{\"gravity\": 9.8}'. With --resume, they replace the "
        "run's arguments; the spaces must stay the same.",
        LEARNING,
    )
    agent_policies: Literal["shared", "separate"] = setting(
        "shared",
        "PettingZoo environments: one policy for all agents with equal spaces (shared), or one for each agent "
        "(separate).",
        stays("the option decides which policies exist"),
    )
    atari: bool = setting(
        False,
        "Preprocess an Atari game, such as ALE/Pong-v5. Frames are grey, 84 by 84. A step takes 4 frames, and returns "
        "the maximum of the last two. An episode begins with up to 30 no-ops. A lost life ends the episode in "
        "training, not in evaluation. The default of the learner's --frame-stack is then 4. Needs the extra 'atari'.",
        stays("another environment is another task"),
    )

    def env_factory(self) -> "EnvironmentFactory":
        """Returns the factory of the environment.

        Raises:
            ConfigurationError: If settings contradict each other.
        """
        # imported here: gymnasium, which the help does not need
        from rollcast.actor.environments.make import EnvironmentFactory

        return EnvironmentFactory(self.env_id, self.env_kwargs, agent_policies=self.agent_policies, atari=self.atari)


class ActingSettings(EnvironmentSettings):
    """The settings of every process that acts: how to step environments."""

    vectorization: Literal["auto", "sync", "entry_point", "subprocess", "measure"] = setting(
        "auto",
        "The method with which an actor steps its environments. auto: entry_point if they have a vector_entry_point, "
        "otherwise sync; sync: one environment after the other; entry_point: with the vector_entry_point, or fail; "
        "subprocess: in processes, one per core; measure: the faster of sync and subprocess in a trial.",
        ACTING,
    )
    on_step_failure: Literal["fail", "drop_episode"] = setting(
        "fail",
        "Action when an environment raises in a step, or returns a wrong value. fail: the actor fails; drop_episode: "
        "log the traceback, drop the episode and reset the environment.",
        FREE,
    )
    step_timeout_s: TimeoutSeconds = setting(
        300.0,
        "Seconds that a step or reset of an actor's environments may take. After that the actor ends, and reports "
        "to the learner where the environment hangs.",
        FREE,
    )

    def env_factory(self) -> "EnvironmentFactory":
        """Returns the factory of the environment, with the method to step several environments.

        Raises:
            ConfigurationError: If settings contradict each other.
        """
        return replace(super().env_factory(), vectorization=self.vectorization, on_step_failure=self.on_step_failure)


class DialInSettings(ServedSecuritySettings):
    """The settings of every process that acts for environments that dial in."""

    serve_environments: ListeningAddress | None = setting(
        None,
        "Act for environments that dial in at this address, host:port or unix:/path, instead of --env-id. They may be "
        "games, simulators or robots in any language. Default: none.",
        FREE,
    )
    serve_websockets: WebAddress | None = setting(
        None,
        "A second address, host:port, besides --serve-environments, where environments dial in over WebSockets: "
        "browsers, and languages without gRPC. Needs the extra 'websockets'. Default: none.",
        FREE,
    )
    serve_batch_size: AtLeastOne | None = setting(
        None,
        "Largest number of environments of --serve-environments in one forward pass. A pass begins when this number "
        "waits. It begins earlier if all environments wait, or if the first has waited as long as the last pass took. "
        "Default: no limit.",
        FREE,
    )
    serve_tokens_file: Path | None = setting(
        None,
        "Require that clients of --serve-environments send a token from this file. Each line is ROLE:TOKEN, with "
        "the role actor, viewer or operator. The file is read again when it changes. Default: no token required.",
        FREE,
    )

    @property
    def required_tokens(self) -> Path | None:
        """See `ServedSecuritySettings.required_tokens`."""
        return self.serve_tokens_file

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        for name in ("serve_websockets", "serve_batch_size"):
            value = getattr(self, name)
            if value is not None and self.serve_environments is None:
                raise ValueError(
                    f"{option_name((name,))}: {value!r} is given without --serve-environments; expected both; add "
                    "--serve-environments localhost:50052, for example"
                )
        return self

    def refuse_made_environments(self, given: Collection[str]) -> None:
        """Refuses settings for environments that a process makes, because the environments of this process dial in.

        Args:
            given: The names of all settings that are given.

        Raises:
            ConfigurationError: Such a setting is given.
        """
        for name in ("env_id", "env_kwargs", "agent_policies", "atari", "vectorization", "on_step_failure"):
            if name in given:
                raise ConfigurationError(
                    f"{option_name((name,))} is given with --serve-environments {self.serve_environments}, whose "
                    "environments dial in; expected one of the two options; omit one"
                )

    def dial_in(self) -> "DialIn":
        """Returns the addresses and limits for environments that dial in. Needs `serve_environments`.

        Raises:
            ConfigurationError: A file cannot be used, or the address is open to other machines without TLS and
                `insecure` is not set.
        """
        # imported here: a server, which most processes do not need
        from rollcast.actor.dialling.supply import DialIn

        assert self.serve_environments is not None  # the caller has checked
        security = self.security_at(self.serve_environments)
        return DialIn(self.serve_environments, security, self.serve_websockets, self.serve_batch_size)


class ActorSettings(ActingSettings, ServingClientSecuritySettings, DialInSettings, MetricsSettings):
    """Steps environments with the newest policy and streams the rollouts to a learner."""

    first_options: ClassVar = (
        *("learner_address", "role", "env_id", "env_kwargs", "recipe", "actor_id", "envs_per_actor", "network"),
        "serve_environments",
        "inference_address",
        *("vectorization", "connect_timeout_s", "reconnect_timeout_s", "tls_ca", "token_file", "log_level"),
    )

    recipe: str | None = Field(
        None,
        description="The learner's --recipe. The actor takes its environment and other options from the recipe. To "
        "list all recipes, run rollcast recipes. Default: none.",
        examples=list(recipe_names()),
    )
    role: Literal["act", "evaluate"] = Field(
        "act",
        description="act: play rollouts for training; evaluate: play whole episodes to evaluate policies, for a "
        "learner with --eval-interval-s or --eval-interval-steps.",
    )
    learner_address: ServerAddresses = Field(
        "localhost:50051",
        description="The learner's address, or a relay's: host:port, unix:/path, or file:/path of its --address-file. "
        "Separate several addresses of the same learner with commas: the actor tries them in this order, also after a "
        "loss.",
    )
    actor_id: Annotated[str, AfterValidator(_expand_name)] = Field(
        "{host}-{pid}",
        description="This actor's name. rollcast replaces {host} and {pid} with the host's name and the process id. A "
        "restarted actor with the same name keeps its slot.",
    )
    envs_per_actor: EnvsPerActor | None = Field(
        None,
        description="Number of environments to step together, in one batched forward pass. Default: the number that "
        "the learner requests.",
    )
    inference_address: ServerAddress | None = Field(
        None,
        description="Address of an actor with --serve-environments that computes the policy for this one, for example "
        "on a GPU: host:port, unix:/path or file:/path. Without an answer, this actor computes the policy itself. "
        "Default: none.",
    )
    inference_timeout_s: TimeoutSeconds = Field(
        1.0,
        description="Seconds that an answer of --inference-address may take. After that the actor computes the policy "
        "itself.",
    )
    actor_device: Annotated[str, AfterValidator(_check_device)] = Field(
        "cpu",
        examples=["cuda:0"],
        description="The device on which this actor computes the policy, also for actors with its address as "
        "--inference-address: cpu, cuda, or cuda:0. Evaluators compute on the CPU.",
    )
    network: str = Field(
        "auto",
        description="The learner's --network, if it is package.module:factory. An actor imports no other network.",
    )
    policy_encoding: PolicyEncodingName = Field(
        "full",
        description="Encoding of policies on the wire; the weights are the same. full: all bytes; bfloat16: half the "
        "bytes; delta: the compressed difference to the previous policy, for low-bandwidth links. "
        "bfloat16 and delta save most if the learner has --policy-rounding bfloat16.",
    )
    connect_timeout_s: TimeoutSeconds = Field(60.0, description="Seconds to wait for the learner at the start.")
    reconnect_timeout_s: TimeoutSeconds = Field(600.0, description="Seconds to wait for a lost learner.")
    max_rollout_bytes: Annotated[int, Field(gt=0)] = Field(
        DEFAULT_LIMITS.max_rollout_bytes,
        description="Largest rollout that this actor makes, in bytes. The actor refuses a learner that requires larger "
        "rollouts. Raise this limit together with the learner's --limits.max-rollout-bytes.",
    )
    wait_for_next_run: bool = Field(
        False,
        description="After training, wait for the learner's next run and act in it, instead of ending with exit "
        "code 0.",
    )
    torch_threads: AtLeastOne = Field(1, description="CPU threads of torch and of the linear algebra library.")
    heartbeat_file: str = Field(
        "",
        description="A file that the actor touches every second, also while it waits for a learner. Use it for health "
        "checks. Default: none.",
    )
    log_level: LogLevel = Field("INFO", description="Least severe messages to log, on stderr.")

    @model_validator(mode="after")
    def _check_inference(self) -> Self:
        if self.inference_address is not None and (self.serve_environments is not None or self.role == "evaluate"):
            other = "--role evaluate" if self.role == "evaluate" else "--serve-environments"
            raise ValueError(
                f"--inference-address: {self.inference_address!r} is given with {other}; expected an actor that steps "
                "its own environments; omit one of the options"
            )
        return self

    def acting_device(self) -> str | None:
        """Returns the device on which torch computes the policy; None: the CPU, without torch if that is faster.

        Raises:
            ConfigurationError: There is no such device.
        """
        if self.actor_device == "cpu":
            return None
        require_extra("torch", f"--actor-device {self.actor_device}")
        import torch

        if (torch.device(self.actor_device).index or 0) >= (n_devices := torch.cuda.device_count()):
            raise ConfigurationError(
                f"--actor-device: {self.actor_device!r}, but torch finds {n_devices} CUDA devices here; "
                "expected one of these devices; use --actor-device cpu"
            )
        return self.actor_device

    def dial_in(self) -> "DialIn":
        """See `DialInSettings.dial_in`.

        Raises:
            ConfigurationError: Also if a setting for environments that the actor makes is given.
        """
        self.refuse_made_environments(self.model_fields_set)
        if self.role == "evaluate":
            raise ConfigurationError(
                "--role evaluate is given with --serve-environments; expected --role act, because an evaluator plays "
                "whole episodes of its own environment; omit one of the options"
            )
        return super().dial_in()

    @classmethod
    def preset(cls, origins: Origins) -> Mapping[str, Any]:
        """Returns the actors' settings of the named recipe, if any.

        Raises:
            ConfigurationError: There is no such recipe.
        """
        return {name: value for name, value in recipe_given(origins).items() if name in cls.model_fields}
