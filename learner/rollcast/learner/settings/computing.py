"""The settings of a learner's device, and of the arithmetic on it. Imports neither torch nor grpc."""

from typing import Literal

from pydantic import NonNegativeInt

from rollcast.services.settings.resume_rules import ACTING, FREE
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import ProcessSettings


class ComputingSettings(ProcessSettings):
    """The settings of a process that trains."""

    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "The device to train on; auto: a GPU if there is one.", ACTING
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = setting(
        "auto",
        "Precision of updates. tf32: products on the GPU round their factors to 10 bits. bf16: hidden layers and "
        "convolutions compute in bfloat16; parameters, outputs, losses, targets and the optimiser stay float32. auto: "
        "tf32 on GPUs that have it, but fp32 with --deterministic and on the CPU.",
        ACTING,
    )
    channels_last: Literal["auto", "on", "off"] = setting(
        "auto",
        "Keep the channels of images last in memory during updates. Results differ by rounding. auto: on for a "
        "GPU, and on the CPU for computations with gradients.",
        ACTING,
    )
    cuda_graphs: Literal["auto", "on", "off"] = setting(
        "auto",
        "Replay updates as CUDA graphs, so that the host launches one graph instead of hundreds of kernels. auto: "
        "on for a GPU if the algorithm supports it, but not with --deterministic. If a capture fails, rollcast "
        "logs this, and updates run without graphs.",
        ACTING,
    )
    batch_ahead: Literal["auto", "on", "off"] = setting(
        "auto",
        "Assemble the next batch in a thread, and copy it to the device, while the trainer learns from the current "
        "one. Results do not change. auto: on for a GPU, off for a CPU, where it brings no speed-up. It has no effect "
        "with a replay buffer, PPO, --deterministic or --actor-kind sequential.",
        FREE,
    )
    torch_threads: NonNegativeInt = setting(
        0,
        "CPU threads of torch in the learner. 0: the environment variable OMP_NUM_THREADS, if it is set. Otherwise "
        "1 for policies below 500,000 weights, and for larger policies all cores of the container that local "
        "actors and other ranks do not use.",
        ACTING,
    )
