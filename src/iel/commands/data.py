"""`iel data make`, `iel data info`."""

from __future__ import annotations

from typing import Any

import numpy as np

from iel.data import load
from iel.options import DataInfo, DataMake


def data_make_command(options: DataMake) -> dict[str, Any]:
    """`iel data make`."""
    from iel.data.make import make_dataset  # the simulator is needed only here

    files = make_dataset(
        options.name, episodes=options.episodes, seed=options.seed, workers=options.workers, directory=options.out
    )
    if not options.json:
        print("\n".join(str(path) for path in files.values()))
    return {split: str(path) for split, path in files.items()}


def data_info_command(options: DataInfo) -> dict[str, Any]:
    """`iel data info`."""
    data = load(options.name, episodes=options.episodes, make=False)
    lengths = np.diff(data.offsets) - 1
    facts = {
        "name": data.name,
        "episodes": len(data),
        "transitions": data.num_transitions,
        "observation_size": data.observation_size,
        "action_size": data.action_size,
        "shortest_episode": int(lengths.min()),
        "longest_episode": int(lengths.max()),
        "observation_low": data.observations.min(0).tolist(),
        "observation_high": data.observations.max(0).tolist(),
        "fingerprint": data.fingerprint,
    }
    if not options.json:
        for name, value in facts.items():
            print(f"{name:18} {value}")
    return facts
