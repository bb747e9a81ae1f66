"""Each reason why an agent stops, driven until it stops and until it goes on."""

import time

import numpy as np
import pytest

import iel
from iel.data import Trajectories
from iel.errors import ConfigError
from iel.model.support import support_of
from iel.planning import Watchdog
from tests.serving.conftest import served, walk

STOP = (0.25, -1.0)


@pytest.fixture(scope="module")
def agent() -> iel.Agent:
    """Random networks over a random walk of two columns."""
    source = served()
    observations, offsets = walk()
    model = source.model
    model.support = support_of(Trajectories(observations, np.zeros((len(observations), 1)), offsets, checked=True))
    return iel.Agent(model, source.atlas, nodes=80)


@pytest.fixture
def states():
    return walk()[0]


def driven(agent, states, **settings):
    return agent.start(states[400], watchdog=Watchdog(STOP, **settings))


def test_off_by_default_and_the_same_actions_while_all_is_well(agent, states):
    free, watched = agent.start(states[400]), driven(agent, states)
    for row in states[:20]:
        np.testing.assert_array_equal(free.act(row), watched.act(row))
        assert free.stopped is None and watched.stopped is None
    with pytest.raises(ConfigError, match="Only a watchdog looks at stamps"):
        free.act(states[0], stamp=1.0)


def stops(episode, reason: str, observation, **more) -> bool:
    action = episode.act(observation, **more)
    if episode.stopped is None:
        return False
    np.testing.assert_array_equal(action, np.float32(STOP))
    assert reason in episode.stopped
    return True


def test_numbers_that_are_not_finite(agent, states):
    episode = driven(agent, states)
    for broken in (np.nan, np.inf, 1e300):
        assert stops(episode, "not finite: column 1", [0.0, broken])
    assert not stops(episode, "", states[0])


def test_what_is_no_observation_is_refused(agent, states):
    episode = driven(agent, states)
    for strange in ([1.0], "left", [[0.0, 0.0], [1.0, 1.0]]):
        assert stops(episode, "refused: ", strange)
    assert not stops(episode, "", states[0])


def test_stale_stamps(agent, states):
    episode = driven(agent, states)
    assert not stops(episode, "", states[0], stamp=7)
    assert stops(episode, "stale: the stamp 7 follows 7", states[1], stamp=7)
    assert stops(episode, "stale: the stamp 5 follows 7", states[1], stamp=5)
    assert not stops(episode, "", states[1], stamp=8)
    assert stops(episode, "stale", states[1], stamp=np.nan) and not stops(episode, "", states[2], stamp=9)
    clocked = driven(agent, states, max_age=0.5)
    assert stops(clocked, "s old", states[0], stamp=time.time() - 0.6)
    assert not stops(clocked, "", states[1], stamp=time.time())


def test_a_sensor_that_hangs(agent, states):
    episode = driven(agent, states, repeats=3)
    assert [stops(episode, "repeated: the same observation", states[5]) for _ in range(4)] == [False, False, True, True]
    assert not stops(episode, "", states[6])
    patient = driven(agent, states, repeats=None)
    assert not any(stops(patient, "", states[5]) for _ in range(30))


def test_outside_of_the_data(agent, states):
    episode = driven(agent, states)
    assert stops(episode, "outside: The observation is outside of the data", [500.0, 500.0])
    assert not stops(episode, "", states[0])
    assert not stops(driven(agent, states, outside=False), "", [500.0, 500.0])


def test_no_progress(agent, states):
    """Steps to go that rise or fall by less than one in all count as standing still; those that fall are progress."""
    near_to_far = sorted(states[:200], key=lambda row: agent.steps(row, states[400]))
    episode = driven(agent, states, stuck=10, repeats=None)
    away = [stops(episode, "no progress: ", row) for row in near_to_far]
    assert away[:10] == [False] * 10 and all(away[10:])
    standing = driven(agent, states, stuck=10, repeats=None)
    assert [stops(standing, "no progress: ", states[5]) for _ in range(12)] == [False] * 10 + [True] * 2
    reaching = driven(agent, states, stuck=30, repeats=None)
    far_to_near = near_to_far[::-1][:: 200 // 25]
    assert not any(stops(reaching, "", row) for row in far_to_near)


def test_settings_are_checked(agent, states):
    with pytest.raises(ConfigError, match="1 numbers; give 2"):
        agent.start(states[400], watchdog=Watchdog((0.0,)))
    for wrong in ({"repeats": 0}, {"max_age": -1.0}, {"stuck": 0}, {"stop": (np.nan, 0.0)}):
        with pytest.raises(ConfigError):
            Watchdog(**{"stop": STOP, **wrong})
    bare = served()
    with pytest.raises(ConfigError, match="does not know where its data was"):
        iel.Agent(bare.model, bare.atlas, nodes=80).start(states[400], watchdog=Watchdog(STOP))
