"""Minimises a loss over all parameters of an algorithm's networks: gradient, ranks, clipping, optimiser."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rollcast.learner.ranks.reduction import GradientReduction
from rollcast.services.errors import ConfigurationError

# Makes the optimiser of one vector.
MakeOptimizer: TypeAlias = Callable[[nn.Parameter], Optimizer]

# Each parameter begins at a multiple of this many numbers, 64 bytes. Kernels load several numbers at once, and MKL a
# whole cache line. At other addresses they are slower, and may round differently.
_ALIGNMENT: Final = 16


class Descent:
    """An optimiser of some modules, whose parameters are slices of one vector.

    A step is two calls, between which the algorithm checks for divergence:

        terms, norms = descent.backward([loss], report, count=n, reduction=reduction)
        watch.observe(*terms, *norms)
        descent.step(learning_rate)

    A checkpoint has the optimiser's state. Not thread-safe: only the algorithm's thread uses it.

    Attributes:
        parameters: The parameters of the modules.
        optimizer: The optimiser, of `parameters.vector` alone.
    """

    def __init__(self, modules: Mapping[str, nn.Module], optimizer: MakeOptimizer, *, max_grad_norm: float) -> None:
        """Moves the parameters into one vector, and makes its optimiser.

        Args:
            modules: The modules by name; see `FlatParameters`.
            optimizer: Makes the optimiser.
            max_grad_norm: The gradient of each module is scaled down to this norm, above 0.
        """
        self.parameters = FlatParameters(modules)
        self.optimizer = optimizer(self.parameters.vector)
        self._names = tuple(modules)
        self._max_grad_norm = max_grad_norm

    def backward(
        self,
        outputs: Sequence[Tensor],
        terms: Sequence[Tensor],
        *,
        count: Tensor | float,
        reduction: GradientReduction,
        output_gradients: Sequence[Tensor] | None = None,
        write_gradient: Callable[..., None] | None = None,
    ) -> tuple[Sequence[Tensor], list[Tensor]]:
        """Computes the gradient of the next step: the mean over all ranks, clipped for each module.

        Args:
            outputs: Losses (0-dim), or outputs of the modules, of any shapes.
            terms: Numbers for the report: means over the same share of the batch; 0-dim, without graph.
            count: The number of values in these means and in the loss.
            reduction: The ranks.
            output_gradients: The gradient of the loss with respect to each output; None: the outputs are losses.
            write_gradient: See `FlatParameters.backward`.

        Returns:
            The terms, as means over all ranks, and the gradient norm of each module before clipping, 0-dim.
        """
        gradient = self.parameters.backward(outputs, output_gradients, write_gradient)
        with torch.no_grad():
            terms = reduction.average(gradient, terms, count)
            return terms, [self.parameters.clip_gradient(name, self._max_grad_norm) for name in self._names]

    def step(self, learning_rate: Tensor | float | None = None) -> None:
        """Makes the optimiser step of the last `backward`.

        Args:
            learning_rate: A float, or a 0-dim tensor on the step's device; None: the previous step's.
        """
        if learning_rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
        self.optimizer.step()


class FlatParameters:
    """The trainable parameters of some modules as slices of one vector.

    A small network has a dozen parameters, and clipping and an optimiser step run about ten operations on each. On one
    vector, each operation runs once, which saves a quarter of a small update and most kernel launches. Zeros between
    the parameters, with gradients 0, align each to 64 bytes. These zeros have no effect, and checkpoints omit them.

    Invariant: every trainable parameter of the modules is a view of `vector`. `load_state_dict` and in-place changes
    keep this; `module.to(device)` after construction does not. Not thread-safe: only the algorithm's thread uses it.

    Attributes:
        vector: float32 `[P]` with the zeros, the optimiser's parameter. `backward` writes its `grad`.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """Moves the parameters into one vector.

        Args:
            modules: The modules by name. They are on one device and share no parameter.

        Raises:
            ConfigurationError: If a trainable parameter is not float32, or none exists.
        """
        self._parameters: list[nn.Parameter] = []
        self._offsets: list[int] = []
        self._slices: dict[str, slice] = {}
        end = 0
        for module_name, module in modules.items():
            start = end = _aligned(end)
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:
                    continue
                if parameter.dtype != torch.float32:
                    raise ConfigurationError(
                        f"Parameter {name} of the {module_name} is {parameter.dtype}; expected torch.float32. "
                        "Build the network in float32, or freeze the parameter."
                    )
                self._parameters.append(parameter)
                self._offsets.append(_aligned(end))
                end = self._offsets[-1] + parameter.numel()
            self._slices[module_name] = slice(start, end)
        if not self._parameters:
            raise ConfigurationError(
                f"The networks {sorted(modules)} have no trainable parameter; expected at least one. "
                "Check their factory."
            )
        device = self._parameters[0].device
        ends = [offset + parameter.numel() for offset, parameter in zip(self._offsets, self._parameters, strict=True)]
        # The zeros between each parameter and the previous one; None without zeros.
        self._gaps = [
            torch.zeros(offset - before, device=device) if offset > before else None
            for offset, before in zip(self._offsets, [0, *ends[:-1]], strict=True)
        ]
        self.vector = nn.Parameter(self._joined([parameter.detach() for parameter in self._parameters]))
        self.vector.grad = torch.zeros_like(self.vector)
        for parameter, own in zip(self._parameters, self._of_parameters(self.vector.data), strict=True):
            parameter.data = own.view(parameter.shape)

    def backward(
        self,
        outputs: Sequence[Tensor],
        output_gradients: Sequence[Tensor] | None = None,
        write_gradient: Callable[..., None] | None = None,
    ) -> Tensor:
        """Writes the gradient with respect to every parameter into `gradient`.

        Args:
            outputs: Losses (0-dim), or outputs of the modules, of any shapes.
            output_gradients: The gradient of the loss with respect to each output, of the same shapes. None: the
                outputs are losses.
            write_gradient: Writes the gradient by hand, from `output_gradients`; see `PairedMlps`. None: autograd
                computes it.

        Returns:
            `gradient`, `[P]`; overwritten by the next call.
        """
        if write_gradient is not None:
            assert output_gradients is not None
            write_gradient(*output_gradients)
            return self.gradient
        losses = outputs
        if output_gradients is not None:
            loss: Tensor = _Differentiated.apply(*outputs, *output_gradients)  # type: ignore[no-untyped-call]  # torch's
            losses = [loss]
        gradients = torch.autograd.grad(losses, self._parameters, allow_unused=True, materialize_grads=True)
        return self._joined(gradients, out=self.gradient)

    @property
    def gradient(self) -> Tensor:
        """The gradient of `vector`, `[P]`. It stays the same tensor, with zeros between the parameters."""
        assert self.vector.grad is not None  # set by the constructor
        return self.vector.grad

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """Returns the gradient of one parameter as a view of `gradient`, of its shape."""
        start = self._offset_of(parameter)
        return self.gradient[start : start + parameter.numel()].view(parameter.shape)

    def side_by_side(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Returns two parameters of one shape, and their gradients, as views `[2, *shape]` of the vectors.

        Args:
            first: A parameter.
            second: A later parameter of the same shape.
        """
        start, shape = self._offset_of(first), (2, *first.shape)
        strides = (self._offset_of(second) - start, *first.stride())
        return self.vector.data.as_strided(shape, strides, start), self.gradient.as_strided(shape, strides, start)

    def _offset_of(self, parameter: Tensor) -> int:
        return next(offset for own, offset in zip(self._parameters, self._offsets, strict=True) if own is parameter)

    def packed(self, vector: Tensor) -> Tensor:
        """Returns a vector like `vector` without the zeros between the parameters: `[P]` -> `[n]`."""
        return torch.cat(self._of_parameters(vector))

    def unpacked(self, packed: Tensor) -> Tensor:
        """Returns the vector `[P]` for the result `[n]` of `packed`, on the device of the parameters.

        Raises:
            ConfigurationError: If the argument has another length.
        """
        n = sum(parameter.numel() for parameter in self._parameters)
        if packed.shape != (n,):
            raise ConfigurationError(
                f"a vector for {n} parameters has the shape {list(packed.shape)}; expected [{n}]. Resume with the "
                "networks of that run."
            )
        sizes = [parameter.numel() for parameter in self._parameters]
        return self._joined(torch.split(packed.to(self.vector.device), sizes))

    def _joined(self, parts: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
        """Returns the vector of tensors for each parameter, of any shapes."""
        pieces: list[Tensor] = []
        for gap, part in zip(self._gaps, parts, strict=True):
            if gap is not None:
                pieces.append(gap)
            pieces.append(part.reshape(-1))
        return torch.cat(pieces, out=out)

    def _of_parameters(self, vector: Tensor) -> list[Tensor]:
        """Returns the slices of a vector like `vector`, as views, one for each parameter."""
        return [
            vector[offset : offset + parameter.numel()]
            for offset, parameter in zip(self._offsets, self._parameters, strict=True)
        ]

    def clip_gradient(self, module_name: str, max_norm: float) -> Tensor:
        """Scales the gradient of one module down to a norm.

        Args:
            module_name: The module's name in the constructor's `modules`.
            max_norm: The largest norm, above 0.

        Returns:
            The norm before clipping, 0-dim.
        """
        gradient = self.gradient[self._slices[module_name]]
        norm: Tensor = torch.linalg.vector_norm(gradient)
        # 1e-6 as in torch.nn.utils.clip_grad_norm_: it keeps a norm of 0 from dividing
        gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
        return norm


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


# Some of an optimiser's methods are wrapped, so that torch.compile leaves them alone, and the first call of a wrapper
# imports torch._dynamo, which takes two seconds of processor time. Nothing here is compiled with an optimiser in it:
# these classes call the methods themselves.
def _unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the wrapped method, or the method itself if this version of torch does not wrap it."""
    return getattr(method, "__wrapped__", method)  # set by functools.wraps


class _Eager(Optimizer):
    add_param_group = _unwrapped(Optimizer.add_param_group)
    load_state_dict = _unwrapped(Optimizer.load_state_dict)
    state_dict = _unwrapped(Optimizer.state_dict)
    zero_grad = _unwrapped(Optimizer.zero_grad)


class Adam(_Eager, torch.optim.Adam):
    """Adam (Kingma and Ba 2015), bit-identical to torch.optim.Adam."""

    step = torch.no_grad()(_unwrapped(torch.optim.Adam.step))


class RMSprop(_Eager, torch.optim.RMSprop):
    """RMSProp (Hinton 2012), bit-identical to torch.optim.RMSprop."""

    step = torch.no_grad()(_unwrapped(torch.optim.RMSprop.step))


def adam(
    learning_rate: float, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Callable[[nn.Parameter], Adam]:
    """Returns a factory of Adam for one vector, with one kernel instead of ten on CPU and CUDA."""
    return lambda vector: Adam([vector], lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)


def make_capturable(optimizer: Optimizer) -> None:
    """Makes an optimiser keep the state of a step on its device, so that a graph can capture steps."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        if not group.get("fused"):
            group["foreach"] = True  # the other way reads a learning rate on the device
    for parameter, state in optimizer.state.items():
        if "step" in state:  # RMSprop's is on the CPU until then
            state["step"] = state["step"].to(parameter.device)
    # torch warns of steps that are not captured, as those before the first capture are.
    vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True


class _Differentiated(torch.autograd.Function):
    """A loss that is known only by its gradient with respect to some outputs.

    `torch.autograd.grad` takes such gradients as `grad_outputs`, too, but imports sympy at its first call, which delays
    every start.
    """

    @staticmethod
    def forward(ctx: Any, *outputs_and_gradients: Tensor) -> Tensor:  # noqa: ANN401 - torch has no type for it
        """Returns a dummy number, 0-dim. The arguments are the outputs, then the gradient with respect to each."""
        ctx.save_for_backward(*outputs_and_gradients[len(outputs_and_gradients) // 2 :])
        return outputs_and_gradients[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch has no type for it
        """Returns the gradients from `forward`, and None for the gradient arguments."""
        gradients = ctx.saved_tensors
        return (*gradients, *(None,) * len(gradients))
