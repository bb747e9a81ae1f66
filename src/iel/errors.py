"""The errors of this package. Every message is one sentence that names the thing and says what to do.

The command line turns any `IELError` into that sentence on stderr and exit code 2; everything else is a bug.
"""

import difflib
from collections.abc import Iterable


class IELError(Exception):
    """Base of all errors a user can cause and fix."""


class DataError(IELError):
    """A data set is malformed: the message names file, episode, step and column."""


class ConfigError(IELError):
    """A setting has an impossible value or an unknown name."""


class RunError(IELError):
    """A run directory is missing, incomplete or of another version."""


class GeometryError(IELError):
    """Embeddings, costs or a graph that no planner can work with."""


class NoPath(IELError):
    """The goal cannot be reached in the planning graph (for example because nodes were switched off)."""

    def __init__(self, sentence: str, episodes: Iterable[int] = ()):
        super().__init__(sentence)
        self.episodes = tuple(episodes)
        """Which episodes of a plan have no route."""


class ContractError(IELError):
    """A method breaks a promise that training, planning or evaluation relies on."""


class ChainError(IELError):
    """A Markov chain or representation breaks an assumption (rows that do not sum to one, wrong rank...)."""


def install(extra: str) -> str:
    """How an extra is installed: nothing of this name is on an index, so it is a clone that pip is pointed at."""
    return f"in a clone of iel, run: pip install '.[{extra}]'"


def unknown_name(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> ConfigError:
    """An error for a misspelt name: the nearest known ones, or all of them, or `otherwise` what to do."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.55)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else otherwise or f"choose from {', '.join(names)}."
    return ConfigError(f"Unknown {kind} '{name}': {hint}")
