"""An atlas holds what planners know of the data, with or without the data, and nothing it does not check."""

import dataclasses

import numpy as np
import pytest

from benchmarks.runtime import random_model
from iel.data import Trajectories
from iel.errors import ConfigError, GeometryError
from iel.model.atlas import Atlas, ObservedEdges
from iel.planning import AsymGraph, Direct, GasGraph, RecMid, SymGraph


@pytest.fixture(scope="module")
def walks() -> Trajectories:
    rng = np.random.default_rng(0)
    positions = np.cumsum(rng.normal(0, 0.3, (5, 300, 3)), axis=1).astype(np.float32)
    return Trajectories.from_episodes([(walk, np.zeros((299, 2))) for walk in positions], trust=True)


@pytest.mark.parametrize("kind", ["directed", "goal-value"])
@pytest.mark.parametrize("planner", [AsymGraph, SymGraph])
def test_a_graph_of_its_nodes_is_the_graph_of_the_data(walks, kind, planner, tmp_path):
    model = random_model(kind, (16, 16), 3, 2, 6)
    known = planner(model, walks, nodes=50, unobserved_cost=100.0)
    AsymGraph(model, walks, nodes=50, unobserved_cost=100.0).node_atlas().save(model, tmp_path / "planner.safetensors")
    atlas = Atlas.load(model, tmp_path / "planner.safetensors")
    assert atlas.chosen and len(atlas) == 50 and atlas.trajectories is None and atlas.penalty == 100.0
    again = planner(model, atlas)
    for row in range(0, 1500, 100):
        for each in (known, again):
            each.prepare(walks.observations[700])
        ours, theirs = again.path(walks.observations[row]), known.path(walks.observations[row])
        np.testing.assert_array_equal(ours.nodes, theirs.nodes)
        np.testing.assert_allclose(ours.costs, theirs.costs, rtol=1e-4)
        np.testing.assert_allclose(again.act(walks.observations[row]), known.act(walks.observations[row]), atol=1e-4)


def test_what_is_reported_of_nodes_is_not_reported_of_others(walks):
    """Farthest points of exported nodes come in another order, so the table of observed edges is not theirs."""
    model = random_model("directed", (16, 16), 3, 2, 6)
    atlas = AsymGraph(model, walks, nodes=50, unobserved_cost=100.0).node_atlas()
    assert AsymGraph(model, atlas).graph.observed_edges is atlas.edges
    assert AsymGraph(model, atlas, coreset="farthest", unobserved_cost=1.0).graph.observed_edges is None
    with pytest.raises(ConfigError, match="only states"):
        AsymGraph(model, atlas, coreset="farthest")


def test_every_planner_takes_an_atlas_trajectories_or_a_table(walks):
    model = random_model("euclidean", (16, 16), 3, 2, 6)
    for planner, settings in ((Direct, {}), (RecMid, {}), (GasGraph, {}), (AsymGraph, {"nodes": 40})):
        for data in (walks, Atlas.of(walks), walks.observations):
            made = planner(model, data, **settings)
            assert (made.atlas.trajectories is None) == (data is walks.observations)
            made.prepare(walks.observations[5])
            assert np.isfinite(made.act(walks.observations[900])).all()
            assert f"{type(made).__name__}(" in repr(made)


def test_it_is_frozen_and_says_what_it_is(walks):
    atlas = Atlas.of(walks)
    assert Atlas.of(atlas) is atlas and repr(atlas) == "Atlas(1500 states of 5 episodes)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        atlas.penalty = 3.0
    with pytest.raises(GeometryError, match="some rows"):
        Atlas(np.zeros((0, 3)))
    assert not ObservedEdges(2, np.zeros(0, int), np.zeros(0, int)).seen(np.array([0]), np.array([1]), np.ones(1)).any()


def test_infinite_scales_and_penalties_are_saved(walks, tmp_path):
    """Columns that do not count have an infinite scale, and edges that are removed an infinite penalty."""
    model = random_model("goal-value", (16, 16), 3, 2, 6)
    atlas = AsymGraph(model, walks, nodes=30, unobserved_cost=np.inf).node_atlas()
    atlas = dataclasses.replace(atlas, node_scale=np.array([1.0, 2.0, np.inf]))
    atlas.save(model, tmp_path / "planner.safetensors")
    loaded = Atlas.load(model, tmp_path / "planner.safetensors")
    assert (
        loaded.penalty == np.inf and loaded.node_scale is not None and loaded.node_scale.tolist() == [1.0, 2.0, np.inf]
    )
