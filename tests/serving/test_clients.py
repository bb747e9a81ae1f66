"""Clients share a server's model, nodes and searches, and nothing else: each is answered as if it were alone."""

import asyncio
import threading

import numpy as np
import pytest

from benchmarks.runtime import random_model
from iel.errors import NoPath
from iel.planning import planners_for
from iel.serving.engine import Control, Engine, Served
from iel.serving.schemas import ActQuery, ControlMessage
from tests.serving.conftest import atlas, nodes, served, walk

KINDS = {"directed": (), "euclidean": (), "goal-value": (32, 32), "goal": (32, 32)}
"""Models with linear and with other networks: nodes are matched by a displacement, by clusters, by a value network."""


def serpentine(kind: str) -> Served:
    """Four long arms, joined at alternate ends: a straight line to the goal crosses walls."""
    along, across = np.linspace(0.0, 4.0, 60), np.linspace(0.0, 1.2, 12)[1:-1]
    parts = []
    for arm in range(4):
        parts.append(np.column_stack([along[:: (-1) ** arm], np.full(60, 1.2 * arm)]))
        parts.append(np.column_stack([np.full(10, 4.0 * (arm % 2 == 0)), 1.2 * arm + across]))
    states = np.concatenate(parts[:-1]).astype(np.float32)
    if not KINDS[kind]:  # GAS's graph has a reach of 8
        states *= 10.0
    model = random_model(kind, KINDS[kind], 2, 2, 6)
    return Served("serpentine", model, atlas(states, np.array([0, len(states)])), options=nodes(120))


def every_planner() -> list[tuple[str, str]]:
    return [(kind, planner) for kind in KINDS for planner in planners_for(serpentine(kind).model)]


@pytest.mark.parametrize(("kind", "planner"), every_planner())
def test_two_clients_with_one_goal_are_answered_as_each_alone(kind, planner, monkeypatch):
    monkeypatch.setattr(Served, "planners", property(lambda self: planners_for(self.model)))  # GAS's own graph too
    source = serpentine(kind)
    states, engine = source.states.tolist(), Engine(source)
    goal, there = states[-1], states[-2]

    def query(observation):
        return ActQuery(observation=observation, goal=goal, planner=planner, steps=source.model.metric is not None)

    for row in range(0, len(states), 5):
        engine._plans.clear()
        alone = engine.act(query(states[row]))
        engine._plans.clear()
        engine.act(query(there))  # another client, next to the goal
        assert engine.act(query(states[row])) == alone, f"from state {row}"
    engine.close()


def test_a_refused_obstacle_leaves_the_loop_as_it_was():
    source = served()
    states, engine = walk()[0], Engine(source)
    loop = Control(engine)

    def reply(**message):
        return loop.answer(ControlMessage(**message))

    here = {"observation": states[10].tolist(), "steps": True}
    reply(goal=states[400].tolist(), planner="asym-graph")
    node = states[engine.agent("asym-graph").planner.states[7]]
    assert reply(avoid=[node.tolist()], radius=1e-4)["nodes_off"] == 1
    action = reply(**here)
    with pytest.raises(NoPath, match="Every node"):
        reply(avoid=[states[0].tolist()], radius=1e9)
    assert reply(**here) == action and loop.planner.nodes_off.sum() == 1, "same goal, same obstacles"
    assert reply(avoid=[])["nodes_off"] == 0
    assert np.isfinite(reply(**here)["action"]).all()
    engine.close()


def test_a_cancelled_request_counts_until_the_worker_is_done():
    engine, begun, release = Engine(served()), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        release.wait(10)

    async def cancelled() -> None:
        request = asyncio.create_task(engine.call(slow))
        await asyncio.to_thread(begun.wait, 10)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert engine.waiting == 1, "the worker is busy, so the next call must wait"
        second = asyncio.create_task(engine.call(threading.current_thread))
        await asyncio.sleep(0)
        assert engine.waiting == 2
        release.set()
        assert await second is not threading.current_thread(), "nothing runs beside the worker"
        assert engine.waiting == 0
        queued = [asyncio.create_task(engine.call(threading.current_thread)) for _ in range(3)]
        await asyncio.sleep(0)
        queued[-1].cancel()
        await asyncio.gather(*queued, return_exceptions=True)
        assert engine.waiting == 0

    asyncio.run(cancelled())
    engine.close()
