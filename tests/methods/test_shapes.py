"""Shapes that losses and networks declare, checked while the step of every method is traced."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = """
import jax, jax.numpy as jnp
from jaxtyping import install_import_hook

hook = install_import_hook(["iel.losses", "iel.nn"], "beartype.beartype")
import iel.losses
from algo_worlds import ring
from iel.data.goals import to_device
from iel.methods import METHODS
from iel.policies import Directions, Waypoints

try:
    iel.losses.iql_value_loss(jnp.zeros((4, 1)), jnp.zeros((2, 4)), 0.9)
except Exception as error:
    assert "iql_value_loss" in str(error)
else:
    raise AssertionError("a column in place of a row was accepted")

small = {"steps": 10, "batch_size": 4, "hidden": (8,)}
algos = [method.preset("smoke", **small) for method in METHODS.values()]
algos += [METHODS["iel"].preset("smoke", **small, policy=policy)
          for policy in (Waypoints(columns=(0, 1)), Directions(extraction="cloning", heads=2, future_share=1.0))]
for algo in algos:
    data = ring()
    spec = algo.spec(data)
    arrays, key = to_device(data, spec.position), jax.random.key(0)
    phases = algo.phases()
    first = {phase.slot: phase.learner for phase in reversed(phases)}
    params = jax.eval_shape(lambda key: {slot: learner.init(key, spec) for slot, learner in first.items()}, key)

    def step(key, learner, others):
        batch = learner.sample(key, arrays, learner.tables(others, arrays, spec))
        return learner.update(learner.start(key, spec), batch, key)

    for phase in phases:
        others = {slot: own for slot, own in params.items() if slot != phase.slot}
        jax.eval_shape(lambda key, others: step(key, phase.learner, others), key, others)
    print(algo.name)
"""


@pytest.mark.slow
def test_the_step_of_every_method_keeps_the_declared_shapes():
    from iel.methods import METHODS

    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(done.stdout.split()) == set(METHODS)
