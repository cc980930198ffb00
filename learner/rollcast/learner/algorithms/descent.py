"""Goes down a loss with all parameters of an algorithm's networks at once: gradient, ranks, clipping, optimiser."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rollcast.learner.algorithms.flat_parameters import FlatParameters
from rollcast.learner.algorithms.optimizers import set_learning_rate
from rollcast.learner.ranks.reduction import GradientReduction

# Makes the optimiser of one vector.
MakeOptimizer: TypeAlias = Callable[[nn.Parameter], Optimizer]


class Descent:
    """An optimiser of some modules, whose parameters it moves into one vector.

    A step is two calls, between which the algorithm looks whether training diverges:

        terms, norms = descent.backward([loss], report, count=n, reduction=reduction)
        watch.observe(*terms, *norms)
        descent.step(learning_rate)

    A checkpoint has the optimiser's state. Not thread-safe: it belongs to the algorithm's thread.

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
    ) -> tuple[Sequence[Tensor], list[Tensor]]:
        """Computes the gradient of the next step: the mean over all ranks, clipped for each module.

        Args:
            outputs: Losses (0-dim), or outputs of the modules, of any shapes.
            terms: Numbers for the report, which are means over the same share of the batch; 0-dim, without graph.
            count: The number of terms in these means and in the loss.
            reduction: The ranks.
            output_gradients: The gradient of the loss with respect to each output; None: the outputs are losses.

        Returns:
            The terms, as means over all ranks; and the norm of the gradient of each module before clipping, 0-dim.
        """
        gradient = self.parameters.backward(outputs, output_gradients)
        with torch.no_grad():
            terms = reduction.average(gradient, terms, count)
            return terms, [self.parameters.clip_gradient(name, self._max_grad_norm) for name in self._names]

    def step(self, learning_rate: Tensor | float | None = None) -> None:
        """Makes the step of the last `backward`; None: with the learning rate of the step before."""
        if learning_rate is not None:
            set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.step()
