"""Compiled programs are stored for the next training, which then starts in seconds.

They are in `iel/compiled` of the user's cache directory, which may be deleted at any time. JAX's own variables decide
otherwise: JAX_COMPILATION_CACHE_DIR names another directory, JAX_ENABLE_COMPILATION_CACHE=0 stores none. A program is
found again by its text, the versions of JAX and XLA, their flags and the device, so it computes the same bits.
"""

import os
from pathlib import Path

import jax

LEAST_SECONDS = 0.3
"""Programs that compile faster are not stored."""


def keep_programs() -> None:
    """Let this process store its compiled programs and use those of earlier ones; a directory that JAX has stays."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        directory = cache.expanduser() / "iel" / "compiled"
    except RuntimeError:  # HOME is unknown
        return
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
