"""An episode as a timeline, read back from its file. The package has 500 MB, so `make install` leaves it out."""

import sys

import numpy as np
import pytest

import iel
from benchmarks.runtime import random_model
from iel.errors import ConfigError
from iel.viz import log_episode

STATES = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
NAMES = {"observations": ("x", "y", "a/b", "vx", "vy"), "actions": ("left", "right", "up"), "rate": 10.0}


@pytest.fixture(scope="module")
def agent() -> iel.Agent:
    model = random_model("directed", (16, 16), 5, 3, 8)
    model.signals = model.signals.replace(**NAMES)
    return iel.Agent(model, STATES, nodes=40)


def test_the_file_has_what_was_seen_done_and_planned(agent, tmp_path):
    pytest.importorskip("rerun")
    from rerun.chunk import RrdReader

    actions = np.linspace(-1, 1, 33).reshape(11, 3)
    path = log_episode(tmp_path / "new" / "drive.rrd", agent, STATES[40], STATES[:12], actions, plan_every=5)
    found: dict[str, list] = {}
    moments: dict[str, list] = {}
    for chunk in RrdReader(path).stream():
        table = chunk.to_record_batch()
        columns = [name for name in table.schema.names if name.endswith((":scalars", ":strips", ":positions"))]
        for column in columns:
            entity = chunk.entity_path.strip("/")
            found[entity] = found.get(entity, []) + table.column(column).to_pylist()
            moments[entity] = moments.get(entity, []) + table.column("step").to_pylist()
            assert {"step", "time"} <= set(chunk.timeline_names)
    values = {name: np.array(rows)[np.argsort(moments[name])] for name, rows in found.items() if name != "plan"}
    assert np.allclose(values["observation/x"][:, 0], STATES[:12, 0])
    assert np.allclose(values["observation/a\\/b"][:, 0], STATES[:12, 2])
    assert np.allclose(values["action/right"][:, 0], actions[:, 1]) and sorted(moments["plan"]) == [0, 5, 10]
    episode = agent.start(STATES[40])
    assert np.allclose(values["predicted_steps"][:, 0], [episode.steps(row) for row in STATES[:12]], rtol=1e-5)
    assert np.allclose(values["position"][:, 0], STATES[:12, :2])
    route = found["plan"][int(np.argmin(moments["plan"]))][0]
    assert np.allclose(route, np.asarray(episode.plan(STATES[0]).observations)[:, :2])


def test_without_the_package_the_extra_is_named(agent, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ConfigError, match=r"\[rerun\]"):
        log_episode(tmp_path / "a.rrd", agent, STATES[40], STATES[:2])
    assert not list(tmp_path.iterdir())
