"""The fault suite: quick tests always, those marked `faults` with IEL_FAULTS=1 (`make faults`)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers of this directory


@pytest.fixture(scope="session")
def lab(maze_data, tmp_path_factory):
    """Runs trainees on three episodes of the real maze."""
    from processes import Lab

    return Lab(tmp_path_factory.mktemp("lab"), maze_data.select([0, 1, 2]))


@pytest.fixture(scope="session")
def uninterrupted(lab):
    """A run that is never killed."""
    out = lab.root / "uninterrupted"
    lab.finish(out)
    return out
