"""A frozen model as ONNX graphs, written node by node from the weights.

    model.onnx   observation, goal -> action, cost, steps     heads straight for the goal
    act.onnx     observation, command -> action               the policy, for a planner's commands
    embed.onnx   observation -> embedding                     phi
    omega.onnx   goal -> omega                                a goal's unit direction

Every input and output has a free first axis `batch`; all numbers are float32. Only operators that runtimes have had
for years are used (opset 17 for LayerNormalization; GELU is spelt out), so that converters understand the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import iel
from iel.errors import ConfigError
from iel.metrics import FLOOR, REMAINING_FLOOR, SQUARED_FLOOR, Displacement, Quasimetric, SupportFunction
from iel.model import Direction, MeasureCost, Model, Perceptron, Subgoal, Waypoint, networks

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
            "Writing ONNX files needs the package onnx: pip install 'iel[onnx]', or export with --no-onnx."
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

    def row_sum(self, x: str, keep: bool) -> str:
        """Sum over the last axis."""
        return self.add("ReduceSum", x, self.weight("last_axis", np.array([-1], np.int64)), keepdims=int(keep))

    def squares(self, x: str, keep: bool) -> str:
        """||x||^2 over the last axis."""
        return self.row_sum(self.add("Mul", x, x), keep)

    # ---------------------------------------------------------------- parts of a model

    def network(self, name: str, **known: str) -> list[str]:
        """The answers of all heads of one of the model's networks on its inputs, side by side as it lists them."""
        network, answers = self.model.networks[name], []
        for number, head in enumerate(network.heads):
            if "blind" in network.inputs:
                columns = self.weight("elsewhere", np.array(self.model.elsewhere, np.int64))
                known["blind"] = self.add("Gather", known["observation"], columns, axis=1)
            inputs = [known[part] for part in network.inputs]
            x = inputs[0] if len(inputs) == 1 else self.add("Concat", *inputs, axis=1)
            answers.append(self.perceptron(head, f"{name}.{number}" if number else name, x))
        return answers

    def embedding(self, x: str) -> str:
        """phi(x), or x itself."""
        return self.network("embedding", observation=x)[0] if "embedding" in self.model.networks else x

    def ahead(self) -> str:
        """phi(g) - phi(x)."""
        return self.add("Sub", self.embedding("goal"), self.embedding("observation"))

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
        norm = self.add("Sqrt", self.add("Max", self.squares(y, True), networks.SQUARED_NORM_FLOOR))
        return self.add("Div", y, self.add("Add", norm, networks.UNIT_EPSILON))

    def on_sphere(self, name: str, **known: str) -> str:
        """The answer of a network scaled to length sqrt(its size)."""
        (answer,) = self.network(name, **known)
        return self.add("Mul", self.unit(answer), math.sqrt(self.model.networks[name].sizes[-1]))

    def action(self, observation: str, command: str, policy: str = "policy") -> str:
        """The mean of a policy, within [-1, 1]."""
        heads = self.network(policy, observation=observation, command=command, goal=command)
        mean = heads[0] if len(heads) == 1 else self.add("Mean", *heads)
        if self.model.networks[policy].squash:
            mean = self.add("Tanh", self.columns(mean, range(self.model.action_size)))
        return self.add("Clip", mean, -1.0, 1.0)

    def asked(self, observation: str, command: str) -> str:
        """The action that a critic or a measure is asked about."""
        return self.action(observation, command, "actor" if "actor" in self.model.networks else "policy")

    def command(self, omega: str) -> str:
        """What the policy is told when it heads straight for the goal."""
        steering = self.model.steering
        if isinstance(steering, Direction):
            return self.heading(self.ahead(), omega)
        if isinstance(steering, Waypoint):
            columns = self.weight("columns", np.array(steering.columns, np.int64))
            gathered = (self.add("Gather", x, columns, axis=1) for x in ("goal", "observation"))
            scale = self.weight("scale", np.array(steering.scale, np.float32))
            first = self.weight("first_column", np.eye(1, len(steering.columns), dtype=np.float32)[0])
            return self.heading(self.add("Div", self.add("Sub", *gathered), scale), first)
        if isinstance(steering, Subgoal):
            return self.on_sphere("high", observation="observation", goal="goal")
        return "goal"

    def heading(self, displacement: str, otherwise: str) -> str:
        """unit(displacement), or something else where that has no length."""
        norm = self.add("Sqrt", self.squares(displacement, True))
        safe = self.add("Max", norm, SHORTEST)
        usable = self.add("Greater", norm, SHORTEST)
        return self.add("Where", usable, self.add("Div", displacement, safe), otherwise)

    def cost(self, omega: str) -> str:
        """d(x, g; g) of a displacement, l exp(beta (1 - <Delta, omega> / l)), a support function, a quasimetric, a
        measure, or minus a value."""
        metric = self.model.metric
        if isinstance(metric, Displacement):
            ahead = self.ahead()
            length = self.add("Sqrt", self.add("Max", self.squares(ahead, False), SQUARED_FLOOR))
            cosine = self.add("Div", self.row_sum(self.add("Mul", ahead, omega), False), length)
            exponent = self.add("Mul", self.add("Sub", 1.0, cosine), metric.beta)
            return self.add("Mul", length, self.add("Exp", exponent))
        if isinstance(metric, SupportFunction):
            landmarks = self.weight("landmarks", metric.directions.T.astype(np.float32))
            cost = self.add("ReduceMax", self.add("MatMul", self.ahead(), landmarks), axes=[-1], keepdims=0)
        elif isinstance(metric, Quasimetric):
            cost = self.quasimetric(metric, self.embedding("observation"), self.embedding("goal"))
        else:
            cost = self.measure_cost(metric) if isinstance(metric, MeasureCost) else self.value_cost()
        return self.add("Max", cost, FLOOR)

    def value_cost(self) -> str:
        """Minus a value, as `ValueCost`."""
        network, known = self.model.networks["value"], {"observation": "observation", "goal": "goal"}
        by_action = "action" in network.inputs
        if by_action:
            known["action"] = self.asked("observation", "goal")
        if "representation" in network.inputs:
            known["representation"] = self.on_sphere("representation", **known)
        heads = self.network("value", **known)
        if "goal_features" in self.model.networks:
            features = self.network("goal_features", **known)
            heads = [self.add("Mul", *pair) for pair in zip(heads, features, strict=True)]
        values = [self.row_sum(head, True) for head in heads]
        cost = self.add("Neg", self.row_sum(self.add("Min" if by_action else "Mean", *values), False))
        return self.add("Softplus", cost) if network.logit else cost

    def measure_cost(self, metric: MeasureCost) -> str:
        """log p / log gamma, p = gamma M(x, g) / (d + gamma M(g, g)) bent to stay positive, as `MeasureCost`."""
        size = self.model.networks["high"].sizes[-1]
        task = self.on_sphere("high", goal="goal")

        def measure(state: str) -> str:
            heads = self.network("forward", observation=state, action=self.asked(state, task), command=task)
            values = [self.row_sum(self.add("Mul", head, task), True) for head in heads]
            return self.add("Mul", self.row_sum(self.add("Mean", *values), False), metric.decay)

        most = self.add("Add", self.add("Relu", measure("goal")), size)
        likely = self.add("Div", measure("observation"), self.add("Mul", most, metric.SMALL))
        bent = self.add("Softplus", self.add("Max", likely, -30.0))
        log = self.add("Where", self.add("Greater", likely, -30.0), self.add("Log", bent), likely)
        return self.add("Div", self.add("Add", log, math.log(metric.SMALL)), math.log(metric.decay))

    def quasimetric(self, metric: Quasimetric, source: str, target: str) -> str:
        """scale d(x, y), as `iel.quasimetrics`."""
        size = self.model.dimension // metric.groups
        shape = self.weight("groups", np.array([-1, metric.groups, size], np.int64))
        x, y = (self.add("Reshape", end, shape) for end in (source, target))
        if metric.head == "iqe":
            lengths = self.union_lengths(x, y, size)
            shares = (metric.mix, 1.0 - metric.mix)
            parts = (self.add(f"Reduce{how}", lengths, axes=[-1], keepdims=0) for how in ("Mean", "Max"))
            cost = self.add("Add", *(self.add("Mul", part, share) for part, share in zip(parts, shares, strict=True)))
        else:
            difference = self.add("Sub", x, y)
            halves = [self.columns(difference, range(half * size // 2, (half + 1) * size // 2)) for half in (0, 1)]
            down = self.add("Relu", self.add("ReduceMax", halves[0], axes=[-1], keepdims=0))
            both = self.add("Add", down, self.add("Sqrt", self.squares(halves[1], False)))
            cost = self.add("ReduceMean", both, axes=[-1], keepdims=0)
        return self.add("Mul", cost, metric.scale)

    def union_lengths(self, left: str, right: str, size: int) -> str:
        """sum_k (y_k - max(x_k, max_{j before k} y_j))_+ over the last axis."""
        covered = left
        for j in range(size):
            start, end = (self.columns(x, [j]) for x in (left, right))
            later = self.weight(f"after_{j}", np.arange(size) > j)
            level = self.add("And", self.add("Equal", start, left), later)
            before = self.add("Or", self.add("Less", start, left), level)
            covered = self.add("Max", covered, self.add("Where", before, end, left))
        return self.row_sum(self.add("Relu", self.add("Sub", right, covered)), False)

    def columns(self, x: str, chosen: Iterable[int]) -> str:
        """Some places of the last axis."""
        places = np.array(list(chosen), np.int64)
        return self.add("Gather", x, self.weight(f"places_{'_'.join(map(str, places))}", places), axis=-1)

    def steps(self, cost: str, discount: float) -> str:
        """max(log(1 - (1 - gamma) d) / log(gamma), 0)."""
        if discount == 1.0:
            return cost
        used = self.add("Mul", cost, 1.0 - discount)
        remaining = self.add("Max", self.add("Sub", 1.0, used), REMAINING_FLOOR)
        steps = self.add("Div", self.add("Log", remaining), math.log(discount))
        return self.add("Max", steps, 0.0)

    # ---------------------------------------------------------------- the file

    def finish(self, name: str, inputs: dict[str, int], outputs: dict[str, tuple[str, int | None]]) -> Any:
        """A checked model; `inputs` give sizes, `outputs` the inner name and the size (None: one number per row)."""
        helper, number = self.onnx.helper, self.onnx.TensorProto.FLOAT

        def value(label: str, size: int | None) -> Any:
            return helper.make_tensor_value_info(label, number, ["batch"] if size is None else ["batch", size])

        for label, (inner, _) in outputs.items():
            self.add("Identity", inner, output=label)
        weights = [self.onnx.numpy_helper.from_array(array, label) for label, array in self.weights.items()]
        graph = helper.make_graph(
            self.nodes,
            name,
            [value(label, size) for label, size in inputs.items()],
            [value(label, size) for label, (_, size) in outputs.items()],
            weights,
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="iel")
        model.producer_version = iel.__version__
        self.onnx.checker.check_model(model, full_check=True)
        return model


def build_graphs(model: Model) -> dict[str, Any]:
    """{file name: ONNX model}."""
    onnx, size, files = require_onnx(), model.observation_size, {}
    graph = Graph(onnx, model)
    omega = graph.omega("goal")
    action = graph.action("observation", graph.command(omega))
    outputs: dict[str, tuple[str, int | None]] = {"action": (action, model.action_size)}
    if model.metric is not None:
        cost = graph.cost(omega)
        outputs["cost"] = (cost, None)
        if model.metric.discount is not None:
            outputs["steps"] = (graph.steps(cost, model.metric.discount), None)
    files["model.onnx"] = graph.finish("model", {"observation": size, "goal": size}, outputs)
    graph = Graph(onnx, model)
    inputs = {"observation": size, "command": model.command_size}
    action = graph.action("observation", "command")
    files["act.onnx"] = graph.finish("act", inputs, {"action": (action, model.action_size)})
    if "embedding" in model.networks:
        graph = Graph(onnx, model)
        outputs = {"embedding": (graph.embedding("observation"), model.dimension)}
        files["embed.onnx"] = graph.finish("embed", {"observation": size}, outputs)
    if "omega" in model.networks:
        graph = Graph(onnx, model)
        files["omega.onnx"] = graph.finish("omega", {"goal": size}, {"omega": (graph.omega("goal"), model.dimension)})
    return files


def signatures(graphs: dict[str, Any]) -> dict[str, str]:
    """{file name: "inputs -> outputs"}, for people."""
    return {
        name: ", ".join(value.name for value in model.graph.input)
        + " -> "
        + ", ".join(value.name for value in model.graph.output)
        for name, model in graphs.items()
    }
