"""The agent. Trained once on walks in a square of 25 cells."""

import subprocess
import sys

import numpy as np
import pytest

import iel
from iel.errors import ConfigError, RunError
from methods.algo_worlds import SQUARE, grid

WITHOUT_JAX = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "equinox", "optax"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import numpy as np
import iel

agent = iel.load_agent(sys.argv[1])
np.save(sys.argv[2], agent.act(np.zeros(2, np.float32), np.full(2, 4.0, np.float32)))
"""


@pytest.fixture(scope="module")
def agent() -> iel.Agent:
    method = iel.HTP.preset("smoke", steps=1_000, policy=iel.Waypoints(steps=300, columns=(0, 1), learning_rate=1e-3))
    return iel.fit(grid(), method, progress=False)


@pytest.mark.optimised
def test_it_acts_plans_and_predicts_without_remembering(agent: iel.Agent):
    start, goal = SQUARE[0].astype(np.float32), SQUARE[24].astype(np.float32)
    first = agent.act(start, goal)
    agent.act(SQUARE[24], SQUARE[3])  # another robot with another goal
    assert np.array_equal(agent.act(start, goal), first) and first.shape == (2,)
    assert np.allclose(agent.act(np.stack([start, start]), goal), first, atol=1e-6)
    route = agent.plan(start, goal)
    steps = np.abs(np.diff(route.observations, axis=0, prepend=start[None], append=goal[None])).sum(1)
    assert (steps <= 2.0).all(), "from start to goal, a node is a step or two from the last"
    assert agent.steps(start, goal) > agent.steps(SQUARE[18], goal) > 0.0
    assert np.array_equal(agent.act(start, {0: 4.0, 1: 4.0}), first), "a goal on all columns is that state"


@pytest.mark.optimised
def test_two_episodes_of_one_agent_do_not_disturb_each_other(agent: iel.Agent):
    goal, walks = SQUARE[24], [SQUARE[[0, 1, 2, 3, 4, 9]], SQUARE[[20, 15, 10, 5, 0, 1]]]
    alone = [[agent.start(goal).act(state) for state in walk] for walk in walks]
    both = [agent.start(goal) for _ in walks]
    together = np.array(
        [[episode.act(walk[step]) for episode, walk in zip(both, walks, strict=True)] for step in range(6)]
    )
    assert np.allclose(np.array(alone), together.swapaxes(0, 1))


@pytest.mark.optimised
def test_a_saved_agent_acts_the_same_without_jax(agent: iel.Agent, tmp_path):
    path = agent.save(tmp_path / "agent")
    start, goal = SQUARE[0].astype(np.float32), SQUARE[24].astype(np.float32)
    loaded = iel.load_agent(path)
    assert loaded.planner.name == agent.planner.name == "sym-graph" and repr(loaded).startswith(
        "Agent(Model(htp, 2 -> 2, SupportFunction"
    )
    assert np.array_equal(loaded.act(start, goal), agent.act(start, goal))
    script = [sys.executable, "-c", WITHOUT_JAX, str(path), str(tmp_path / "action.npy")]
    subprocess.run(script, check=True)
    assert np.array_equal(np.load(tmp_path / "action.npy"), agent.act(start, goal))
    assert iel.load_agent(path, "direct").planner.name == "direct"
    with pytest.raises(RunError, match="already exists"):
        agent.save(path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(RunError):
        iel.load_agent(path)


@pytest.mark.parametrize(
    ("planner", "options"),
    [
        ("direct", {}),
        ("rec-mid", {"average": 5, "pool": 500}),
        ("greedy", {"nodes": 20, "reach": 3.0}),
        ("sym-graph", {"neighbours": 4, "nodes": 20}),
        ("asym-graph", {"coreset": "dpp", "nodes": 15, "lookahead": 1.0, "unobserved_cost": 20.0}),
        ("gas-graph", {"reach": 2.0, "efficiency": 0.5}),
    ],
)
def test_what_is_loaded_acts_the_same_to_the_last_bit(agent: iel.Agent, tmp_path, planner: str, options):
    own = agent.using(planner, **options)
    loaded = iel.load_agent(own.save(tmp_path / "agent"))
    assert loaded.planner.name == planner
    for goal in SQUARE[[24, 3, 12]].astype(np.float32):
        states = SQUARE.astype(np.float32)
        assert np.array_equal(own.act(states, goal), loaded.act(states, goal))
        assert own.steps(states[0], goal) == loaded.steps(states[0], goal)


def test_a_metric_of_your_own_is_not_saved(agent: iel.Agent, tmp_path):
    with pytest.raises(ConfigError, match="metric of your own"):
        agent.using("asym-graph", metric=agent.model.metric).save(tmp_path / "agent")


def test_every_method_policy_planner_and_goal_is_a_public_name():
    from iel.methods import METHODS
    from iel.planning import PLANNERS
    from iel.policies import POLICIES

    listed = {kind.__name__ for registry in (METHODS, PLANNERS, POLICIES) for kind in registry.values()}
    goals = {"Region", "Where", "Avoid", "Mixture", "Sequence", "Reward", "Weighted"}
    assert listed | goals <= set(iel.__all__) <= set(dir(iel))
    assert all(getattr(iel, name) is not None for name in iel.__all__)
    assert iel.planning.PLANNERS is PLANNERS, "packages are attributes, too"
    with pytest.raises(AttributeError, match="no attribute"):
        _ = iel.nothing
