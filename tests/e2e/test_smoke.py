"""Everything on a small real maze: collect, train, plan, act. Slow (half a minute), and worth it."""

import numpy as np
import pytest
from scipy.stats import spearmanr

import iel
from iel.evaluation import Arena, Protocol
from iel.model.model import PlanningModel
from iel.theory.mazes import maze_from_map, steps_between

pytestmark = [pytest.mark.slow, pytest.mark.optimised]

POLICY = iel.Waypoints(steps=1_500, learning_rate=1e-3)


@pytest.fixture(scope="module")
def model(maze_data):
    return iel.train(maze_data, iel.HTP.preset("laptop", steps=2_000, policy=POLICY), seeds=[0], progress=False).model


@pytest.fixture(scope="module")
def pairs(maze_data):
    """300 random pairs of visited states and the fewest steps the maze's walls allow between them."""
    rng = np.random.default_rng(0)
    states, goals = maze_data.observations[rng.integers(maze_data.num_states, size=(2, 300))]
    maze = maze_from_map(iel.make_env(maze_data.name).map.walls.astype(int), margin=0.7)
    return states, goals, steps_between(maze, states, goals)


def test_learned_distances_follow_the_shortest_paths_through_the_maze(model, pairs):
    states, goals, steps = pairs
    assert spearmanr(model.cost(states, goals, goals), steps).statistic >= 0.9


def test_planned_costs_predict_steps(model, maze_data, pairs):
    """Summed along the graph, local costs are steps: right in order, and within a factor on most pairs."""
    states, goals, steps = pairs
    planned = iel.AsymGraph(model, maze_data).plan(goals).costs(model.embed(states))
    assert spearmanr(planned, steps).statistic >= 0.93
    assert 0.6 < np.median(planned[steps > 20] / steps[steps > 20]) < 1.7


def test_the_agent_beats_a_random_one(model, maze_data):
    arena = Arena(maze_data.name, Protocol(episodes=3, max_steps=400))
    planner = iel.AsymGraph(model, maze_data)
    planned = arena.rollout(model, planner, "asym-graph", progress=False)

    class RandomActions(PlanningModel):
        rng = np.random.default_rng(0)
        embed, command = staticmethod(model.embed), staticmethod(model.command)

        def act(self, observations, commands, generator=None):
            return self.rng.uniform(-1, 1, (len(observations), 2)).astype(np.float32)

    aimless = arena.rollout(RandomActions(), planner, "random", progress=False)
    assert planned.success.mean() >= aimless.success.mean() + 0.3
    assert planned.success.mean() >= 0.6


def test_the_readmes_python_is_true(model, maze_data):
    planner = iel.AsymGraph(model, maze_data)
    env = iel.make_env(maze_data.name)
    observation, info = env.reset(seed=0, options={"task_id": 1})
    planner.prepare(info["goal"])
    action = planner.act(observation)
    assert action.shape == (2,) and np.isfinite(action).all() and np.abs(action).max() <= 1


def test_a_goal_equal_to_the_state_gives_a_finite_action(model, maze_data):
    for make in (iel.Direct, iel.RecMid, iel.SymGraph, iel.AsymGraph):
        planner = make(model, maze_data)
        planner.prepare(maze_data.observations[0])
        assert np.isfinite(planner.act(maze_data.observations[0])).all()
