"""How fast training is, against the plainest thing the same machine can do in the same run.

The baseline of a phase is one compiled call that does all the matrix products of its gradient step, of the same shapes,
and nothing else. `fraction_of_matmul` = (time of those products alone) / (time of the whole step): 1 would mean that
sampling, activations, losses and the optimiser cost nothing. With `--bare` the same step is also measured with ReLU in
place of GELU and LayerNorm: `bare_fraction` is what would be reached without them.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from benchmarks import print_rows
from iel import nn
from iel.commands.common import Flag, Output
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError
from iel.learner import Phase, Trained, TrainState
from iel.methods import METHODS, Method, get_method
from iel.progress import Progress
from iel.training.steps import Source, many_steps

SIZES = ((256, 256), (512, 1024))
"""(width, batch) of the standard cases; the second is the paper's."""


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Training speed of every phase against plain matrix products of the same shapes."""

    widths: tuple[int, ...] = tuple(width for width, _ in SIZES)
    """Hidden widths, paired with --batches."""
    batches: tuple[int, ...] = tuple(batch for _, batch in SIZES)
    """Batch sizes, paired with --widths."""
    seconds: float = 6.0
    """Time spent on each number."""
    methods: tuple[str, ...] = ("iel",)
    """Methods to measure, with the shapes of their preset `paper`; `all` for every one."""
    bare: Flag = False
    """Measure each step also without GELU and LayerNorm: what do they cost?"""


def run(
    sizes: Sequence[tuple[int, int]] = SIZES,
    *,
    seconds: float = 6.0,
    methods: Sequence[str] = ("iel",),
    algo: Method | None = None,
    bare: bool = False,
    progress: bool = True,
) -> dict:
    """Measure every phase of every method (or of `algo` alone) at every size. About `seconds` go to each number."""
    data = synthetic_data()
    bases = {name: get_method(name).preset("paper") for name in methods} if algo is None else {algo.name: algo}
    cases = [
        (name, width, batch, dataclasses.replace(base, hidden=(width,) * len(base.hidden), batch_size=batch))
        for name, base in bases.items()
        for width, batch in sizes
    ]
    rows = []
    with Progress("bench training", sum(len(case.phases()) for *_, case in cases), unit="cases", show=progress) as bar:
        for name, width, batch, case in cases:
            source = Source(data, case.spec(data), None)
            first = {phase.slot: phase.learner for phase in reversed(case.phases())}
            start = lambda key, first=first, spec=source.spec: {s: own.start(key, spec) for s, own in first.items()}  # noqa: E731
            states = jax.jit(start)(jax.random.key(0))
            trained = {slot: state.params for slot, state in states.items()}
            for phase in case.phases():
                measured = _measure(phase, states[phase.slot], trained, source, seconds, bare)
                rows.append({"method": name, "phase": phase.name, "width": width, "batch": batch, **measured})
                bar.advance(1, f"{name} {phase.name} {rows[-1]['steps_per_second']:.1f} steps/s")
    return {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "rows": rows}


def _measure(
    phase: Phase, state: TrainState, trained: Trained, source: Source, seconds: float, bare: bool
) -> dict[str, float]:
    learner, data, key = phase.learner, source.data, jax.random.key(1)
    tables = jax.jit(lambda trained: source.prepare(learner, trained, data))(trained)

    def one_step(state: TrainState, key: jax.Array) -> Any:
        sample_key, update_key = jax.random.split(key)
        return learner.update(state, learner.sample(sample_key, *source.seen(learner, tables, data)), update_key)

    products = matrix_products(jax.make_jaxpr(one_step)(state, key).jaxpr)
    flops = sum(product_flops(product) for product in products)
    baseline = _products_alone(products)
    count = max(1, math.ceil(0.1 * seconds / _best_time(baseline, seconds / 10)))

    def steps() -> Callable[[], None]:
        chunk = jax.jit(many_steps(learner, source), donate_argnums=0)
        fresh = jax.tree.map(jnp.copy, state)

        def run_chunk() -> None:
            nonlocal fresh
            fresh, metrics = chunk(fresh, key, tables, data, 0, count)
            jax.block_until_ready((fresh, metrics))

        run_chunk()  # compiled now, with the layers as they are now
        return run_chunk

    timed = {"step": steps(), "products": baseline}
    if bare:
        with bare_layers():
            timed["bare"] = steps()
    # They are measured in turn, so that a machine that slows down slows all.
    best = dict.fromkeys(timed, math.inf)
    for _ in range(4):
        for name, function in timed.items():
            best[name] = min(best[name], _best_time(function, seconds / 8) / (1 if name == "products" else count))
    return {
        "steps_per_second": round(1.0 / best["step"], 2),
        "fraction_of_matmul": round(best["products"] / best["step"], 3),
        **({"bare_fraction": round(best["products"] / best["bare"], 3)} if bare else {}),
        "gflops": round(flops / best["step"] / 1e9, 1),
        "matmul_gflops": round(flops / best["products"] / 1e9, 1),
    }


@contextmanager
def bare_layers() -> Iterator[None]:
    """Hidden layers traced meanwhile are Dense and ReLU."""
    gelu, normalise = jax.nn.gelu, nn.normalise
    jax.nn.gelu, nn.normalise = jax.nn.relu, lambda x: x  # type: ignore[assignment]
    try:
        yield
    finally:
        jax.nn.gelu, nn.normalise = gelu, normalise


# ---------------------------------------------------------------- the matrix products of a step


def matrix_products(jaxpr: core.Jaxpr) -> list[tuple]:
    """(left shape, right shape, dimension numbers) of every dot_general in a jaxpr, also inside calls."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            operands: list[Any] = [variable.aval for variable in equation.invars]
            left, right = (operand.shape for operand in operands)
            found.append((left, right, equation.params["dimension_numbers"]))
        for value in equation.params.values():
            for inner in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(inner, core.ClosedJaxpr):
                    found += matrix_products(inner.jaxpr)
                elif isinstance(inner, core.Jaxpr):
                    found += matrix_products(inner)
    return found


def product_flops(product: tuple) -> float:
    """2 (batch) (free left) (contracted) (free right)."""
    left, right, ((_, contract_right), (_, batch_right)) = product
    free_right = math.prod(size for axis, size in enumerate(right) if axis not in (*contract_right, *batch_right))
    return 2.0 * math.prod(left) * free_right


def _products_alone(products: list[tuple]) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    stock: dict[tuple, jax.Array] = {}
    for left, right, _ in products:
        for shape in (left, right):
            if shape not in stock:
                stock[shape] = jnp.asarray(rng.standard_normal(shape, dtype=np.float32))
    # Every product gets operands of its own: equal ones would be computed once only.
    pairs = [(stock[left] * (1.0 + i), stock[right]) for i, (left, right, _) in enumerate(products)]

    @jax.jit
    def all_products(pairs: list) -> list:
        return [
            jax.lax.dot_general(left, right, dimensions)
            for (left, right), (_, _, dimensions) in zip(pairs, products, strict=True)
        ]

    return lambda: jax.block_until_ready(all_products(pairs))


def _best_time(function: Callable[[], None], seconds: float) -> float:
    """The shortest of repeated timings within a budget, after one call to compile."""
    function()
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end or math.isinf(best):
        mark = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - mark)
    return best


def synthetic_data(states: int = 100_000, size: int = 2) -> Trajectories:
    """Random walks: speed does not depend on what is learned."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (states // 1000, 1000, 2))
    walks = np.concatenate([np.zeros((len(actions), 1, size)), actions.cumsum(1)[..., :size]], 1)
    return Trajectories.from_episodes(list(zip(walks, actions, strict=True)), "random walks")


def command(options: Options) -> dict[str, Any]:
    """`iel bench training`."""
    if len(options.widths) != len(options.batches):
        raise ConfigError("--widths and --batches are paired, so give equally many of both.")
    methods = sorted(METHODS) if options.methods == ("all",) else options.methods
    sizes = list(zip(options.widths, options.batches, strict=True))
    result = run(sizes, seconds=options.seconds, methods=methods, bare=options.bare)
    if not options.json:
        print_rows(result["rows"])
    return result
