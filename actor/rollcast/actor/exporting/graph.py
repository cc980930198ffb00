"""Builds an ONNX graph node by node.

This module uses `onnx.helper` instead of `torch.onnx`. So the graph is the same for every version of torch, and the
export of an MLP needs no torch.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper, numpy_helper

from rollcast.services.version import software_version

# Old enough for the players in game engines, and new enough for float64, int8 and Where.
OPSET: Final = 15
_IR_VERSION: Final = 8
# The name of the first axis of all inputs and outputs with one row for each observation.
BATCH_AXIS: Final = "N"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTensor:
    """An input or an output of a graph.

    Attributes:
        name: The tensor's name.
        dtype: The tensor's dtype.
        shape: The tensor's shape, with `"N"` for the number of observations.
        meaning: A short description.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    meaning: str


class GraphBuilder:
    """A graph that grows node by node. The methods return the names of tensors."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:  # noqa: ANN401 - ONNX's
        """Adds a node with one output.

        Args:
            operator: An operator of ONNX, such as `"Gemm"`.
            inputs: The inputs of the operator.
            output: The name of the output; empty: a new name.
            attributes: The attributes of the operator.
        """
        output = output or self._new_name(operator)
        self._nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, values: NDArray[Any], name: str = "") -> str:
        """Adds a constant. Without `name`, the constant gets a new name."""
        name = name or self._new_name("constant")
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name))
        return name

    def convert(self, x: str, dtype: DTypeLike) -> str:
        """Converts a tensor to another dtype."""
        return self.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Reshapes each row."""
        return self.add("Reshape", x, self.constant(np.array([-1, *shape], np.int64)))

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Splits a tensor `[N, sum(sizes)]` along its second axis."""
        if len(sizes) == 1:
            return [x]
        outputs = [self._new_name("Split") for _ in sizes]
        inputs = [x, self.constant(np.array(sizes, np.int64))]
        self._nodes.append(helper.make_node("Split", inputs, outputs, axis=1))
        return outputs

    def concat(self, parts: Sequence[str]) -> str:
        """Concatenates tensors along the second axis."""
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def filled(self, x: str, values: NDArray[np.float32]) -> str:
        """Repeats float32 `[F]` for each row of x; x is float32 `[N, F]` or `[N, 1]` and finite."""
        return self.add("Add", self.add("Mul", x, self.constant(np.zeros(1, np.float32))), self.constant(values))

    def embed(self, model: onnx.ModelProto, inputs: Mapping[str, str]) -> str:
        """Adds the nodes of another model with one output.

        Args:
            model: The model, of the same opset.
            inputs: The tensor for each input of the model.
        """
        graph = model.graph
        names = dict(inputs) | {tensor.name: self._new_name("embedded") for tensor in graph.initializer}
        for tensor in graph.initializer:
            self._constants.append(numpy_helper.from_array(numpy_helper.to_array(tensor), names[tensor.name]))
        for node in graph.node:
            names |= {output: self._new_name("embedded") for output in node.output}
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[:] = [names.get(name, name) for name in node.input]
            copy.output[:] = [names[name] for name in node.output]
            self._nodes.append(copy)
        return names[graph.output[0].name]

    def model(
        self, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor], metadata: Mapping[str, str]
    ) -> onnx.ModelProto:
        """Returns the whole model.

        Args:
            inputs: The model's inputs.
            outputs: The model's outputs; constants may be outputs, too.
            metadata: Entries for `metadata_props`.
        """
        graph = helper.make_graph(
            self._nodes, "policy", [_value_info(x) for x in inputs], [_value_info(x) for x in outputs], self._constants
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=_IR_VERSION,
            producer_name="rollcast",
            producer_version=software_version(),
        )
        helper.set_model_props(model, dict(metadata))
        return model

    def _new_name(self, what: str) -> str:
        return f"{what}_{next(self._numbers)}"


def _value_info(tensor: GraphTensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        tensor.name, helper.np_dtype_to_tensor_dtype(tensor.dtype), tensor.shape, tensor.meaning
    )
