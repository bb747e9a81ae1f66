"""Lets the tests of methods share `algo_worlds`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
