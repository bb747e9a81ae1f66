"""`check_algo`: does a method, ours or a third party's, keep the contract?"""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import DeviceData, to_device
from iel.data.trajectories import Trajectories
from iel.distances import LatentGoal, SupportFunction
from iel.errors import ContractError, IELError
from iel.learner import Learner, Method, Metrics, Phase, Spec, TrainState
from iel.methods.presets import config_dict, config_from_dict
from iel.model import Model, load_model, save_model


def check_algo(algo: Method, data: Trajectories | None = None) -> None:
    """Run the whole contract on a small data set; raises `ContractError` with the promise that is broken.

    Of every phase: `update` preserves shapes and types, metrics are finite scalars, one of them is the loss, the same
    key gives the same bits and another key does not, seeds can be mapped. Of the model: it survives its files; costs
    are finite and positive, in a table as row by row; predicted steps are in steps; the conditioning gives commands
    that the policy takes, under every planner the metric allows; samples are drawn from the generator alone. The
    configuration survives JSON.
    """
    data = data or _random_walks()
    _demand(isinstance(algo, Method), "a method is a dataclass below iel.learner.Method")
    spec = algo.spec(data)
    arrays = to_device(data, spec.position)
    _demand(config_from_dict(type(algo), config_dict(algo)) == algo, "the configuration does not survive JSON")
    phases = algo.phases()
    _demand(bool(phases) and all(phase.steps >= 0 for phase in phases), "phases() must name at least one phase")
    _demand(all(isinstance(phase.learner, Learner) for phase in phases), "phases() must be of learners")
    first = {phase.slot: phase.learner for phase in reversed(phases)}
    states = {slot: jax.jit(lambda key, of=own: of.start(key, spec))(jax.random.key(0)) for slot, own in first.items()}
    for phase in phases:
        states[phase.slot] = _check_phase(phase, states, arrays, spec)
    model = algo.model({slot: jax.tree.map(np.asarray, state.params) for slot, state in states.items()}, spec)
    _check_files(model, data)
    _check_metric(model, data)
    _check_conditioning(model, data)


def _demand(is_met: bool, promise: str) -> None:
    if not is_met:
        raise ContractError(f"{promise[0].upper()}{promise[1:]}.")


def _check_phase(phase: Phase, states: dict[str, TrainState], arrays: DeviceData, spec: Spec) -> TrainState:
    learner, name, state = phase.learner, phase.name, states[phase.slot]
    others = {slot: own.params for slot, own in states.items() if slot != phase.slot}
    tables = jax.jit(lambda trained: learner.tables(trained, arrays, spec))(others)

    @jax.jit
    def step(state: TrainState, key: jax.Array) -> tuple[TrainState, Metrics]:
        sample_key, update_key = jax.random.split(key)
        return learner.update(state, learner.sample(sample_key, arrays, tables), update_key)

    after, metrics = step(state, jax.random.key(1))
    before_types, after_types = (jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (state, after))
    _demand(before_types == after_types, f"{name}: update reshapes the state")
    _demand(f"{name}/loss" in metrics, f"{name}: the metric {name}/loss is missing")
    for metric, value in metrics.items():
        _demand(value.shape == () and bool(jnp.isfinite(value)), f"{name}: the metric {metric} is not a finite scalar")
    again, _ = step(state, jax.random.key(1))
    other, _ = step(state, jax.random.key(2))
    _demand(bool(eqx.tree_equal(after, again)), f"{name}: the same key gave two results")
    _demand(not eqx.tree_equal(after, other), f"{name}: the key does not matter")
    _demand(not eqx.tree_equal(after, state), f"{name}: update changes nothing")

    def from_scratch(key: jax.Array) -> tuple[TrainState, Metrics]:
        return learner.update(learner.start(key, spec), learner.sample(key, arrays, tables), key)

    # Whether seeds can be mapped shows when the program is traced; compiling it would only take time.
    jax.eval_shape(jax.vmap(from_scratch), jax.random.split(jax.random.key(3), 2))
    return after


def _check_files(model: Model, data: Trajectories) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            save_model(model, Path(scratch) / "model")
            loaded = load_model(Path(scratch) / "model")
        except IELError as error:
            raise ContractError(f"The model does not survive its files: {error}") from error
    mine, theirs = _answers(model, data), _answers(loaded, data)
    for name, answer in mine.items():
        _demand(isinstance(answer, np.ndarray) and bool(np.isfinite(answer).all()), f"model.{name} is not finite numpy")
        _demand(np.array_equal(answer, theirs[name]), f"model.{name} changes when the model is saved and loaded")
    if not isinstance(model.metric, SupportFunction):
        _demand(np.allclose(np.linalg.norm(mine["omega"], axis=1), 1.0, atol=1e-3), "omega is not of unit length")
    _demand(mine["act"].shape == (7, model.action_size), "model.act has the wrong shape")
    _demand(bool((np.abs(mine["act"]) <= 1.0).all()), "model.act leaves [-1, 1]")


def _answers(model: Model, data: Trajectories) -> dict[str, np.ndarray]:
    states, goals = data.observations[:7], data.observations[-7:]
    act = model.act(states, np.ones((7, model.command_size), np.float32))
    answers = {"embed": model.embed(states), "omega": model.omega(goals), "act": act}
    return answers if model.metric is None else {**answers, "cost": model.cost(states, goals, goals)}


def _check_metric(model: Model, data: Trajectories) -> None:
    if model.metric is None:
        return
    states, goals = data.observations[:7], data.observations[-7:]
    points, directions = model.goals(goals)
    sources, targets = model.embed(states).astype(np.float64), points.astype(np.float64)
    first, second = (LatentGoal(targets[row], directions[row]) for row in (0, 1))
    table = model.metric.costs(sources, targets, first)
    rows = model.metric.row_costs(sources, targets, [first] * 7)
    _demand(table.shape == (7, 7) and bool(np.isfinite(table).all() and (table > 0.0).all()), "costs are not positive")
    _demand(np.allclose(np.diagonal(table), rows, rtol=1e-4), "costs in a table and row by row disagree")
    if model.metric.for_every_goal:
        same = np.allclose(table, model.metric.costs(sources, targets, second), rtol=1e-6)
        _demand(same, "the metric says it is the same for every goal, and is not")
    if model.metric.discount is not None:
        _demand(bool((model.steps(states, goals) >= 0.0).all()), "predicted steps are negative")
        one = model.metric.steps(np.array([1.0, 0.0]))
        _demand(abs(one[0] - 1.0) < 1e-6 and one[1] == 0.0, "a cost of one is not one step")


def _check_conditioning(model: Model, data: Trajectories) -> None:
    from iel.planning import make_planner, over_coreset, planners_for

    states = data.observations[:3]
    for name in planners_for(model):
        settings = {"nodes": 20, "neighbours": 3} if over_coreset(name) else {}
        plan = make_planner(name, model, data, **settings).plan(data.observations[-3:])
        embeddings = model.embed(states)
        command = model.command(states, plan.target(embeddings), embeddings)
        _demand(command.shape == (3, model.command_size), f"{name}: the conditioning's command has the wrong shape")
        _demand(bool(np.isfinite(command).all()), f"{name}: the conditioning's command is not finite")
        _demand(bool(np.isfinite(model.act(states, command)).all()), f"{name}: the action is not finite")
    policy = model.networks["policy"]
    if policy.squash or policy.log_std is not None:
        first, second, other = (model.act(states, command, np.random.default_rng(seed)) for seed in (0, 0, 1))
        _demand(np.array_equal(first, second), "a sampled action does not follow from its generator")
        _demand(not np.array_equal(first, other), "a sampled action ignores its generator")


def _random_walks() -> Trajectories:
    rng = np.random.default_rng(0)
    episodes = []
    for length in (12, 90, 7, 21):
        actions = rng.uniform(-1, 1, (length, 2))
        episodes.append((np.concatenate([np.zeros((1, 2)), actions.cumsum(0)]), actions))
    return Trajectories.from_episodes(episodes, "random walks")
