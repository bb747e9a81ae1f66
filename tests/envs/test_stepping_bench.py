"""The stepping benchmark compares like with like."""

import numpy as np
import pytest

from benchmarks.stepping import raw_step, run
from iel.envs import make_env


@pytest.mark.parametrize("name", ["pointmaze-medium-v0", "antmaze-umaze-v2"])
def test_both_sides_do_the_same_step(name):
    env = make_env(name)
    action = np.full(env.action_space.shape, 0.5, np.float32)
    env.reset(seed=1, options={"task_id": 1})
    ours = env.step(action)[0]
    env.reset(seed=1, options={"task_id": 1})
    assert np.array_equal(ours, raw_step(env)(action)[0])


def test_rows_have_their_figures():
    (row,) = run(("antmaze-umaze-play-v2",), seconds=0.1, progress=False)["rows"]
    assert row["env"] == "antmaze-umaze-play-v2"
    ratio = row["raw_steps_per_second"] / row["steps_per_second"] - 1
    assert row["raw_steps_per_second"] > 0 and abs(ratio - row["overhead"]) < 1  # medians of ratios and of times agree
