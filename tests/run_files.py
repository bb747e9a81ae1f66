"""What a training left on the disk."""

from pathlib import Path

from iel.files import file_facts
from iel.training.checkpoint import checkpoint_name, newest_common


def latest_checkpoint(root: Path) -> Path | None:
    """The newest checkpoint that verifies, or None."""
    step, _ = newest_common([root])
    return None if step is None else root / checkpoint_name(step)


def sha256(path: Path) -> str:
    """Digest of a file's content."""
    return file_facts(path).sha256
