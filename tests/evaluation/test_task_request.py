"""Evaluations with another request than each task's goal."""

import json

import numpy as np
import pytest

from iel.distances import Displacement
from iel.errors import ConfigError
from iel.evaluation import Arena, Protocol, TaskRequest
from iel.evaluation.result import Result, summarise, table
from iel.model import Direction
from iel.planning import AsymGraph, Avoid, Direct, PlanningModel, Reward, Where

MAZE = "pointmaze-medium-navigate-v0"


class Plane(PlanningModel):
    """phi(x) = x: the policy moves along the direction it is given."""

    metric, directions = Displacement(0.0, 1.0), 2

    def embed(self, observations):
        return np.asarray(observations, np.float32)

    def goals(self, states):
        axis = np.zeros_like(states)
        axis[:, 0] = 1.0
        return self.embed(states), axis

    def command(self, observations, target, embeddings):
        return Direction().command(self, observations, target, embeddings)

    def act(self, observations, commands, generator=None):
        return np.clip(2.0 * commands, -1, 1).astype(np.float32)


STATES = np.stack(np.meshgrid(np.linspace(-1, 21, 45), np.linspace(-1, 21, 45)), -1).reshape(-1, 2)
"""A grid over the maze."""


def rollout(request: TaskRequest, planner, **settings):
    arena = Arena(MAZE, Protocol(episodes=1, tasks=(1, 2), max_steps=60, request=request, **settings))
    return arena, arena.rollout(Plane(), planner, "planner", progress=False)


def test_without_anything_requested_goals_are_handed_on_as_they_are():
    goals = np.ones((3, 2), np.float32)
    assert TaskRequest().specifications(goals) is goals and TaskRequest().scores([goals]) == {}
    assert "request" not in Arena(MAZE, Protocol(episodes=1, tasks=(1,))).describe()
    assert TaskRequest((1,)).specifications(goals) == [Where({1: 1.0})] * 3
    regions = {0: (1.0, 2.0)}
    assert TaskRequest((0,), regions).specifications(goals)[2] == Avoid(Where({0: 1.0}), regions)


def test_all_columns_of_a_goal_are_the_goal():
    """Matching states are moved to the requested values, so nothing is lost."""
    planner = Direct(Plane(), STATES)
    _, plain = rollout(TaskRequest(), planner)
    _, columns = rollout(TaskRequest((0, 1)), planner)
    assert all(np.array_equal(one, other) for one, other in zip(plain.paths, columns.paths, strict=True))


def test_a_reward_is_collected_to_the_horizon_and_measured():
    def reward(states):
        return states[:, 0] / 20.0

    request = TaskRequest.for_reward(reward, words="the reward x / 20")
    arena, found = rollout(request, Direct(Plane(), STATES))
    assert {len(path) for path in found.paths} == {61}
    assert found.scores["reward_per_step"] == pytest.approx([reward(path[1:]).mean() for path in found.paths])
    for path in found.paths:
        assert path[-1, 0] - path[0, 0] > 1.0, "it climbs"
    _, down = rollout(TaskRequest.for_reward(lambda states: -reward(states)), Direct(Plane(), STATES))
    assert all(path[-1, 0] <= path[0, 0] + 0.1 for path in down.paths)
    for seeds in (1, 2):
        summary = summarise(Result.of(found, MAZE, "", seed, arena.describe()) for seed in range(seeds))
        json.dumps(summary)
        numbers = summary["planners"][found.planner]
        assert numbers["reward_per_step"] == pytest.approx(found.scores["reward_per_step"].mean())
        assert summary["protocol"]["request"] == "the reward x / 20"
        assert "reward a step" in [str(column.header) for column in table(summary).columns]


def test_time_in_avoided_positions_is_measured():
    regions = [{0: (2.0, 6.0)}]
    _, found = rollout(TaskRequest(avoid=regions), AsymGraph(Plane(), STATES, nodes=300, unreachable="direct"))
    for path, share in zip(found.paths, found.scores["share_in_avoided"], strict=True):
        assert share == pytest.approx(((path[1:, 0] >= 2) & (path[1:, 0] <= 6)).mean())


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="leave their columns out"):
        TaskRequest(columns=(0,), goal=Reward(lambda x: x[:, 0]))
    with pytest.raises(ConfigError, match="evaluate a function"):
        TaskRequest.for_reward(np.ones(5))
