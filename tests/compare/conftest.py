"""A fixture for tests of comparisons."""

import pytest

from compare_worlds import InThisProcess


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """Cells are done in the process of the tests, where a process of their own is not what a test is about."""
    monkeypatch.setattr("iel.compare.execute.Here", InThisProcess)
