"""A frozen model as ONNX graphs, written node by node from the weights.

    model.onnx   observation, goal -> action                  heads straight for the goal
    act.onnx     observation, command -> action               the policy, for a planner's commands
    embed.onnx   observation -> embedding                     phi
    omega.onnx   goal -> omega                                a goal's unit direction

Every input and output has a free first axis `batch`; all numbers are float32. Only operators that runtimes have had
for years are used (opset 17 for LayerNormalization; GELU is spelt out), so that converters understand the files.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import iel
from iel.distances import SupportFunction
from iel.errors import ConfigError, install
from iel.model import Direction, Model, Perceptron, Subgoal, Waypoint, networks

OPSET = 17
IR_VERSION = 8
"""The file format that came with opset 17; newer numbers are refused by older runtimes."""
SHORTEST = 1e-9
"""A displacement shorter than this has no direction; the goal's own is followed instead, as planners do."""


def require_onnx() -> Any:
    """The `onnx` package, or a sentence about the extra that brings it."""
    try:
        import onnx
    except ImportError:
        raise ConfigError(
            f"Writing ONNX files needs the package onnx; {install('onnx')}, or export with --no-onnx."
        ) from None
    return onnx


class Graph:
    """One graph in the making; every method adds nodes and returns the name of their result."""

    def __init__(self, onnx: Any, model: Model):
        self.onnx, self.model = onnx, model
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}

    def add(self, operator: str, *inputs: str | float, output: str | None = None, **attributes: Any) -> str:
        """One node; numbers among its inputs become float32 constants."""
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        given = [x if isinstance(x, str) else self.weight(f"number_{float(x)!r}", np.float32(x)) for x in inputs]
        self.nodes.append(self.onnx.helper.make_node(operator, given, [name], name=f"{name}_node", **attributes))
        return name

    def weight(self, name: str, array: ArrayLike) -> str:
        """A tensor of the file; a name used twice is stored once."""
        self.weights[name] = np.asarray(array)
        return name

    def perceptron(self, network: Perceptron, name: str, x: str) -> str:
        """Hidden layers and a linear output, as `Perceptron.__call__`."""
        last = len(network.kernels) - 1
        for index, (kernel, bias) in enumerate(zip(network.kernels, network.biases, strict=True)):
            layer = f"{name}.layers.{index}"
            x = self.add("MatMul", x, self.weight(f"{layer}.kernel", kernel))
            x = self.add("Add", x, self.weight(f"{layer}.bias", bias))
            if index == last:
                break
            if network.norms:
                norm = f"{name}.norms.{index}"
                scale = self.weight(f"{norm}.scale", network.norms[index].scale)
                offset = self.weight(f"{norm}.offset", network.norms[index].offset)
                epsilon = networks.LAYER_NORM_EPSILON
                x = self.add("LayerNormalization", self.gelu(x), scale, offset, axis=-1, epsilon=epsilon)
            else:
                x = self.gelu(x) if network.smooth else self.add("Relu", x)
        return x

    def gelu(self, x: str) -> str:
        """x (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2))) / 2."""
        inner = self.add("Mul", self.add("Mul", x, x), networks.GELU_CUBIC)
        inner = self.add("Mul", self.add("Add", inner, 1.0), x)
        tanh = self.add("Tanh", self.add("Mul", inner, networks.GELU_SLOPE))
        return self.add("Mul", self.add("Mul", self.add("Add", tanh, 1.0), x), 0.5)

    def squares(self, x: str) -> str:
        """||x||^2 over the last axis, which stays."""
        return self.add("ReduceSum", self.add("Mul", x, x), self.weight("last_axis", np.array([-1])), keepdims=1)

    # ---------------------------------------------------------------- parts of a model

    def network(self, name: str, **known: str) -> list[str]:
        """The answers of all heads of one of the model's networks on its inputs, side by side as it lists them."""
        network, answers = self.model.networks[name], []
        for number, head in enumerate(network.heads):
            if "without_position" in network.inputs:
                columns = self.weight("elsewhere", np.array(self.model.elsewhere, np.int64))
                known["without_position"] = self.add("Gather", known["observation"], columns, axis=1)
            inputs = [known[part] for part in network.inputs]
            x = inputs[0] if len(inputs) == 1 else self.add("Concat", *inputs, axis=1)
            answers.append(self.perceptron(head, f"{name}.{number}" if number else name, x))
        return answers

    def embedding(self, x: str) -> str:
        """phi(x), or x itself."""
        return self.network("embedding", observation=x)[0] if "embedding" in self.model.networks else x

    def omega(self, goal: str) -> str:
        """omega_g = y / (sqrt(max(||y||^2, 1e-12)) + 1e-6) of the network's y, or the first axis without one."""
        if "omega" not in self.model.networks:
            pick = np.zeros((self.model.observation_size, self.model.dimension), np.float32)
            first = np.eye(1, self.model.dimension, dtype=np.float32)[0]
            # a product with zeros gives the constant its batch axis
            return self.add("Add", self.add("MatMul", goal, self.weight("no_omega", pick)), self.weight("first", first))
        (answer,) = self.network("omega", observation=goal)
        return answer if isinstance(self.model.metric, SupportFunction) else self.unit(answer)

    def unit(self, y: str) -> str:
        """y / (sqrt(max(||y||^2, 1e-12)) + 1e-6)."""
        norm = self.add("Sqrt", self.add("Max", self.squares(y), networks.SQUARED_NORM_FLOOR))
        return self.add("Div", y, self.add("Add", norm, networks.UNIT_EPSILON))

    def action(self, observation: str, command: str) -> str:
        """The mean of the policy, within [-1, 1]."""
        heads = self.network("policy", observation=observation, command=command, goal=command)
        mean = heads[0] if len(heads) == 1 else self.add("Mean", *heads)
        if self.model.networks["policy"].squash:
            positions = self.weight("means", np.arange(self.model.action_size))  # what follows them are deviations
            mean = self.add("Tanh", self.add("Gather", mean, positions, axis=-1))
        return self.add("Clip", mean, -1.0, 1.0)

    def command(self) -> str:
        """What the policy receives when it heads straight for the goal."""
        conditioning = self.model.conditioning
        if isinstance(conditioning, Direction):
            ahead = self.add("Sub", self.embedding("goal"), self.embedding("observation"))
            return self.heading(ahead, self.omega("goal"))
        if isinstance(conditioning, Waypoint):
            columns = self.weight("columns", np.array(conditioning.columns, np.int64))
            gathered = (self.add("Gather", x, columns, axis=1) for x in ("goal", "observation"))
            scale = self.weight("scale", np.array(conditioning.scale, np.float32))
            first = self.weight("first_column", np.eye(1, len(conditioning.columns), dtype=np.float32)[0])
            return self.heading(self.add("Div", self.add("Sub", *gathered), scale), first)
        if isinstance(conditioning, Subgoal):
            (answer,) = self.network("high", observation="observation", goal="goal")
            return self.add("Mul", self.unit(answer), math.sqrt(self.model.networks["high"].sizes[-1]))
        return "goal"

    def heading(self, displacement: str, otherwise: str) -> str:
        """unit(displacement), or something else where that has no length."""
        norm = self.add("Sqrt", self.squares(displacement))
        safe = self.add("Max", norm, SHORTEST)
        usable = self.add("Greater", norm, SHORTEST)
        return self.add("Where", usable, self.add("Div", displacement, safe), otherwise)

    # ---------------------------------------------------------------- the file

    def finish(self, name: str, inputs: dict[str, int], inner: str, output: str, size: int) -> Any:
        """A checked model; `inputs` give sizes, `inner` is the name of the result that becomes `output`."""
        helper, number = self.onnx.helper, self.onnx.TensorProto.FLOAT
        self.add("Identity", inner, output=output)
        weights = [self.onnx.numpy_helper.from_array(array, label) for label, array in self.weights.items()]
        sizes = {**inputs, output: size}
        *given, answer = (helper.make_tensor_value_info(end, number, ["batch", sizes[end]]) for end in sizes)
        graph = helper.make_graph(self.nodes, name, given, [answer], weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="iel")
        model.producer_version = iel.__version__
        self.onnx.checker.check_model(model, full_check=True)
        return model


def build_graphs(model: Model) -> dict[str, Any]:
    """{file name: ONNX model}."""
    onnx, size, files = require_onnx(), model.observation_size, {}
    graph = Graph(onnx, model)
    action = graph.action("observation", graph.command())
    inputs = {"observation": size, "goal": size}
    files["model.onnx"] = graph.finish("model", inputs, action, "action", model.action_size)
    graph = Graph(onnx, model)
    inputs = {"observation": size, "command": model.command_size}
    action = graph.action("observation", "command")
    files["act.onnx"] = graph.finish("act", inputs, action, "action", model.action_size)
    parts = ("embed", "embedding", "observation", Graph.embedding), ("omega", "omega", "goal", Graph.omega)
    for name, network, given, part in parts:
        if network in model.networks:
            graph = Graph(onnx, model)
            files[f"{name}.onnx"] = graph.finish(name, {given: size}, part(graph, given), network, model.dimension)
    return files


def signatures(graphs: dict[str, Any]) -> dict[str, str]:
    """{file name: "inputs -> outputs"}, for people."""
    return {
        name: ", ".join(value.name for value in model.graph.input)
        + " -> "
        + ", ".join(value.name for value in model.graph.output)
        for name, model in graphs.items()
    }
