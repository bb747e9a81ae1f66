"""`iel bench seeds`: every route trains every seed, and a process that dies is reported at once."""

import os
import signal

import pytest

from benchmarks.seeds import Child, measure, run, variants
from iel.cores import CAN_PIN, environment_for, usable_cores
from iel.errors import IELError


@pytest.mark.parametrize("count", [1, 3, 8])
def test_every_path_trains_every_seed(count):
    found = variants(count)
    assert found[0].name == "one after another" and found[0].waves == count
    by_name = {variant.name: variant for variant in found}
    assert [len(by_name[name].seeds) for name in ("vmap", "processes, all at once")] == [1, count]
    assert by_name["vmap"].seeds == by_name["threads"].seeds
    assert (by_name["vmap"].map, by_name["threads"].map) == ("stacked", "separate")
    for variant in found:
        seeds = [seed for group in variant.seeds for seed in group]
        assert len(set(seeds)) == len(seeds) and len(variant.seeds) == len(variant.cores)
        assert len(seeds) * variant.waves >= count
    if CAN_PIN:
        pinned = by_name["processes, one per core"].cores
        assert len(set(pinned)) == len(pinned) == min(count, len(usable_cores()))


def test_a_child_with_one_core_has_one_thread(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_something=1")
    one, two = environment_for([3]), environment_for([0, 1])
    assert one["XLA_FLAGS"] == "--xla_something=1 --xla_cpu_multi_thread_eigen=false"
    assert two["XLA_FLAGS"] == "--xla_something=1" and (one["OMP_NUM_THREADS"], two["OMP_NUM_THREADS"]) == ("1", "2")


@pytest.mark.long
def test_rates_are_compared_with_the_baseline():
    result = run(2, preset="smoke", steps=4, rounds=1, progress=False)
    assert [row["variant"] for row in result["rows"]] == [variant.name for variant in variants(2)]
    first, together = result["rows"][:2]
    for phase in ("omega", "embedding", "policy"):
        assert first[f"{phase}_ratio"] == 1.0 and first[f"{phase}_steps_per_second"] > 0
        expected = together[f"{phase}_steps_per_second"] / first[f"{phase}_steps_per_second"]
        assert together[f"{phase}_ratio"] == pytest.approx(expected, rel=0.05)
    assert all(row["ready_seconds"] > 0 for row in result["rows"])


def test_a_process_that_dies_is_named():
    child = Child((0, 1), usable_cores(), "stacked", "smoke", 2)
    os.kill(child.process.pid, signal.SIGKILL)
    with pytest.raises(IELError, match=r"The process of seeds 0,1 was ended by SIGKILL; if memory was short"):
        child.hear()
    child.tell("train")  # no process answers, and nothing happens
    child.end()
    with pytest.raises(IELError, match=r"The process of seeds 0 failed: .*nothing-like-it"):
        measure(variants(1)[0], "nothing-like-it", 2, ["omega"])
