"""Refuse a virtual environment in which another checkout of iel is installed: `make` would re-point it silently.

VENV/bin/python scripts/check_venv.py
"""

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def installed_from() -> str:
    """The address of the checkout that is installed here, empty if there is none."""
    try:
        return json.loads(distribution("iel").read_text("direct_url.json") or "{}").get("url", "")
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    address = installed_from()
    if address not in ("", Path.cwd().as_uri()):
        sys.exit(
            f"{sys.prefix} belongs to the checkout {address.removeprefix('file://')}; set VENV to another directory."
        )
