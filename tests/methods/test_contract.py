"""CONTRIBUTING's "Add a method", followed once: a third-party method, and what `check_algo` says of broken ones.

`Nearby` is not registered: whatever works with it here works with any method that keeps the contract.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import POSITIONS, SHORT, act, action, cosine, ring, steps

from compare_worlds import TINY
from iel.cli import run as command
from iel.compare.grid import read_grid
from iel.data.goals import DeviceData, GoalSampler, draw_states
from iel.distances import Displacement, discounted_steps
from iel.errors import ConfigError, ContractError
from iel.learner import Distances, Learner, Metrics, Phase, Spec, Trained
from iel.methods import Method, check_algo
from iel.model import Direction, GoalState, Model
from iel.model.model import ValueCost
from iel.nn import MLP, GaussianPolicy, frozen
from iel.planning import planners_for
from iel.training import open_run, train
from iel.typed import Fraction

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "smoke": {"steps": 1_500, "batch_size": 64, "hidden": (32, 32), "learning_rate": 3e-3},
}


class Networks(NamedTuple):
    value: MLP
    policy: GaussianPolicy


class Batch(NamedTuple):
    state: jax.Array
    action: jax.Array
    goal: jax.Array
    steps: jax.Array


@dataclass(frozen=True, kw_only=True)
class Nearby(Method, Learner):
    """Clone what was done towards a later state g (or x itself), and remember how long it took.

    L = E[(V(x, g) + h(k))^2] - E[log N(a; mu(x, g), 1)],   h(k) = (1 - gamma^k) / (1 - gamma),   g = x_{t+k}
    """

    name = "nearby"
    presets = PRESETS

    discount: Fraction = 0.99
    """gamma of goals and of values."""

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        value_key, policy_key = jax.random.split(key)
        pair = 2 * spec.observation_size
        policy = GaussianPolicy(policy_key, pair, self.hidden, spec.action_size)
        return Networks(MLP(value_key, pair, self.hidden, 1), policy)

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Batch:
        state_key, goal_key = jax.random.split(key)
        rows = draw_states(state_key, data, self.batch_size)
        sampler = GoalSampler(self.discount, p_trajectory=0.8, p_random=0.0, p_current=0.2, future="uniform")
        goals = sampler.goals(goal_key, data, rows)
        return Batch(data.observations[rows], data.actions[rows], data.observations[goals], goals - rows)

    def loss(self, networks: Networks, target: None, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        pair = jnp.concatenate([batch.state, batch.goal], -1)
        value = jnp.square(networks.value(pair)[:, 0] + discounted_steps(batch.steps, self.discount)).mean()
        actor = -networks.policy.unit_log_prob(pair, batch.action).mean()
        return value + actor, {"train/loss": value + actor, "train/value": value, "train/actor": actor}

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        return Distances({"value": frozen(trained["train"].value, "observation", "goal")}, discount=self.discount)


# ---------------------------------------------------------------- it works


def tiny(method: type[Method] = Nearby) -> Method:
    return method.preset("smoke", hidden=(8,), batch_size=8)


def test_a_third_party_method_keeps_the_contract():
    check_algo(tiny())


def test_the_example_of_contributing_keeps_the_contract():
    """Its last line is `check_algo`."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "check_algo(LinearCloning" in example
    exec(example, {"__name__": __name__})


def test_commands_and_grids_take_it_by_module_and_class(tmp_path, monkeypatch):
    """`--algo package.module:Class`, from a file that nothing of iel knows of."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(example.replace("check_algo(Linear", "# check_algo(Linear"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ring().save("ring.npz")
    words = ["--algo", "mine:LinearCloning", "--preset", "smoke", "--steps", "20", "--batch-size", "8"]
    assert command(["train", "--data", "ring.npz", *words, "--out", "run"]) == 0
    run = open_run("run")
    assert run.config["algo"] == "linear-cloning" and run.algo.steps == 20, "it is known by its name from now on"
    run.update(status="interrupted")
    assert (
        command(["train", "--resume", "run", "--algo", "mine:LinearCloning"]) == 0 and open_run("run").algo == run.algo
    )
    with pytest.raises(ConfigError, match="algo is linear-cloning in the run and gcbc now"):
        command(["train", "--resume", "run", "--algo", "gcbc"])
    Path("grid.toml").write_text(f"{TINY}[[methods]]\nalgo = 'mine:LinearCloning'\n[[methods]]\nalgo = 'gcbc'\n")
    first, second, *_ = read_grid("grid.toml").cells
    assert (first.method, second.method) == ("linear-cloning", "gcbc") and first.config.steps == 500
    for text, said in {
        "mine:LinearClone": "cannot be imported",
        "mine": "Unknown method 'mine'",
        "mine:jax": "not a class below iel.methods.Method",
        "algo_worlds:SHORT": "not a class below",
        "iel.methods:IEL": "needs a `name` of its own",
    }.items():
        with pytest.raises(ConfigError, match=said):
            command(["train", "--data", "ring.npz", "--algo", text])
    code = "import iel; iel.open_run('run').algo"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "--algo package.module:Class" in done.stderr, "a run's file imports nothing by itself"


@pytest.mark.optimised
def test_a_third_party_method_trains_and_acts(tmp_path):
    """On the ring: steps as they were counted, and actions that lead on."""
    data = ring()
    model = train(data, Nearby.preset("smoke"), out=tmp_path / "run", progress=False).model
    for here in SHORT[1:4]:
        assert steps(model, here, 4) == pytest.approx(4 - here, abs=0.5)
        assert cosine(act(model, here, 4), action(here, here + 1)) > 0.9
    assert steps(model, 9, 4) == pytest.approx(5, abs=0.7), "the long way only leads this way round"
    # Position 4 is one of five later states on the short route, one of nine on the long one.
    mean = (9 * discounted_steps(4, 0.99) + 5 * discounted_steps(8, 0.99)) / 14
    assert model.cost(*(POSITIONS[[position]] for position in (0, 4, 4)))[0] == pytest.approx(mean, abs=0.3)
    assert planners_for(model) == ("direct", "sym-graph", "asym-graph")


# ---------------------------------------------------------------- every promise, broken


class Halved(ValueCost):
    def steps(self, costs: Any) -> Any:
        return super().steps(costs) / 2


class Negative(ValueCost):
    def costs(self, sources: Any, targets: Any, goal: Any) -> Any:
        return -super().costs(sources, targets, goal)


class Transposed(ValueCost):
    def costs(self, sources: Any, targets: Any, goal: Any) -> Any:
        return super().costs(targets, sources, goal)


class Favourite(ValueCost):
    def costs(self, sources: Any, targets: Any, goal: Any) -> Any:
        return super().costs(sources, targets, goal) + np.abs(goal.point).sum()

    def row_costs(self, sources: Any, targets: Any, goals: Any) -> Any:
        return super().row_costs(sources, targets, goals) + sum(np.abs(goal.point).sum() for goal in goals[:1])


class Narrow(GoalState, frozen=True):
    def command(self, model: Any, observations: Any, target: Any, embeddings: Any) -> Any:
        return super().command(model, observations, target, embeddings)[:, :1]


class Unheard(GoalState, frozen=True, tag="unheard"): ...


def shipping(change: Any) -> type[Nearby]:
    """A method whose model is changed before it is exported."""

    @dataclass(frozen=True, kw_only=True)
    class Changed(Nearby):
        def model(self, trained: Trained, spec: Spec) -> Model:
            model = super().model(trained, spec)
            change(model)
            return model

    return Changed


def measuring(metric: type[ValueCost]) -> type[Nearby]:
    return shipping(lambda model: setattr(model, "metric", metric(model, 0.99)))


def conditioned_by(conditioning: Any) -> type[Nearby]:
    return shipping(lambda model: setattr(model, "conditioning", conditioning))


@dataclass(frozen=True, kw_only=True)
class Silent(Nearby):
    def loss(self, networks, target, batch, key):
        loss, metrics = super().loss(networks, target, batch, key)
        return loss, {"train/error": metrics["train/loss"]}


@dataclass(frozen=True, kw_only=True)
class Growing(Nearby):
    def update(self, state, batch, key):
        after, metrics = super().update(state, batch, key)
        return after._replace(moments=jax.tree.map(jnp.atleast_1d, after.moments)), metrics


@dataclass(frozen=True, kw_only=True)
class Stubborn(Nearby):
    def sample(self, key, data, tables):
        return super().sample(jax.random.key(0), data, tables)


@dataclass(frozen=True, kw_only=True)
class Frozen(Nearby):
    def update(self, state, batch, key):
        return state, self.loss(state.params, None, batch, key)[1]


@dataclass(frozen=True, kw_only=True)
class Lazy(Nearby):
    def phases(self):
        return ()


@dataclass(frozen=True, kw_only=True)
class Backwards(Nearby):
    def phases(self):
        return (Phase(self, -1),)


@dataclass(frozen=True, kw_only=True)
class Forgetful(Nearby):
    def geometry(self):
        return (Phase(GoalState(), 1),)


BROKEN = {
    "a cost of one is not one step": measuring(Halved),
    "costs are not positive": measuring(Negative),
    "costs in a table and row by row disagree": measuring(Transposed),
    "the same for every goal, and is not": measuring(Favourite),
    "model.cost changes when the model is saved": shipping(lambda model: setattr(model, "metric", Displacement(0.0))),
    "the conditioning's command has the wrong shape": conditioned_by(Narrow()),
    "does not survive its files.*conditioning by directions needs an embedding": conditioned_by(Direction()),
    "does not survive its files.*conditioning.kind: invalid value": conditioned_by(Unheard()),
    "the metric train/loss is missing": Silent,
    "update reshapes the state": Growing,
    "the key does not matter": Stubborn,
    "the key does not matter|changes nothing": Frozen,
    "must name at least one phase": Lazy,
    "phases.. must name at least one phase": Backwards,
    "phases.. must be of learners": Forgetful,
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_named(promise):
    with pytest.raises(ContractError, match=f"(?i){promise}"):
        check_algo(tiny(BROKEN[promise]))


def test_promises_are_checked_without_asserts_too():
    """`python -O` removes asserts; broken methods are refused all the same."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import test_contract as t\n"
        "for method in (t.Lazy, t.Silent):\n"
        "    try: t.check_algo(t.tiny(method))\n"
        "    except t.ContractError as error: print(error)\n"
        "assert False, 'gone under -O'\n"
    )
    command = [sys.executable, "-O", "-c", program, *map(str, Path(__file__).parents[:2])]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "at least one phase" in said and "train/loss" in said
