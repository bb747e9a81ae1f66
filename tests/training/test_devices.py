"""Several devices, simulated by JAX on this machine's cores: seeds keep their bits, one seed agrees to rounding."""

import json
import os
import subprocess
import sys

import pytest

from iel.errors import ConfigError
from iel.training.seeds import Split, seed_map

SCRIPT = """
import json, sys
import jax, numpy as np
from iel.methods import GCBC, IEL
from iel.data import Trajectories
from iel.training.loop import Trainer
from iel.training.seeds import seed_map

rng = np.random.default_rng(0)
data = Trajectories.from_episodes(
    [(np.cumsum(rng.normal(size=(41, 3)), 0), rng.uniform(-0.9, 0.9, (40, 2))) for _ in range(30)], trust=True)
small = {"steps": 60, "batch_size": 16, "hidden": (8, 8)}
algo = GCBC(**small) if sys.argv[1] == "gcbc" else IEL.preset("smoke", **small, dimension=4, omega_share=0.3)

def losses(seeds, devices):
    trainer = Trainer(data, algo, seeds, {}, seed_map(len(seeds), devices, algo.batch_size))
    found = []
    for phase in algo.phases():
        advance = trainer.stepper(phase.name)
        found += [advance(10)[f"{phase.name}/loss"].tolist() for _ in range(2)]
    homes = [sorted(str(d) for d in jax.tree.leaves(trainer.each.part(trainer.state, i))[0].devices())
             for i in range(len(seeds))]
    return {"losses": found, "homes": homes}

print(json.dumps({name: losses(*case) for name, case in json.loads(sys.argv[2]).items()}))
"""


def run(algo: str, devices: int, **cases) -> dict:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-c", SCRIPT, algo, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": flags.strip()})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_batches_are_divided_and_seeds_are_spread():
    found = run("gcbc", 4, alone=[[5], 1], divided=[[5], 4], spread=[[5, 6], 2])
    for one, other in zip(found["alone"]["losses"], found["divided"]["losses"], strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert len(found["divided"]["homes"][0]) == 4 and len(found["alone"]["homes"][0]) == 1
    assert [losses[0] for losses in found["spread"]["losses"]] == [losses[0] for losses in found["alone"]["losses"]]
    assert found["spread"]["homes"][0] != found["spread"]["homes"][1]


@pytest.mark.long
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_iel_learns_the_same_on_any_number_of_devices(devices):
    found = run("iel", devices, alone=[[5], 1], divided=[[5], devices], spread=[list(range(3)), devices], each=[[2], 1])
    for one, other in zip(found["alone"]["losses"], found["divided"]["losses"], strict=True):
        assert one == pytest.approx(other, rel=2e-3)
    assert [losses[2] for losses in found["spread"]["losses"]] == [losses[0] for losses in found["each"]["losses"]]


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ConfigError, match="devices is 99"):
        seed_map(1, 99)
    with pytest.raises(ConfigError, match="cannot be divided among 3 devices"):
        Split([0, 0, 0], 16)
