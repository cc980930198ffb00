"""The settings of a learner that is one of several ranks. Imports neither torch nor grpc."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting


class RankSettings(BaseModel):
    """The settings of a learner that is one of several ranks; they change nothing for one that is alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: Literal["auto", "gloo", "nccl"] = setting(
        "auto",
        "torch.distributed's backend for gradients. auto: nccl if the learner trains on CUDA, else gloo.",
        FREE,
    )
    timeout_s: TimeoutSeconds = setting(
        120.0,
        "Seconds that a rank waits for the others before it ends with an error that names the one that is missing.",
        FREE,
    )
    data_timeout_s: TimeoutSeconds = setting(
        5.0,
        "Seconds that a rank waits for rollouts before it takes part in an update without any, with weight 0.",
        FREE,
    )
    check_updates: AtLeastOne = setting(
        100, "Updates between two comparisons of the policies of all ranks, which must be equal.", FREE
    )
