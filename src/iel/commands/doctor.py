"""`iel doctor`: what this machine has, and what to do about what it lacks."""

import importlib.metadata
import platform
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from iel.commands.common import Command, Facts
from iel.cores import usable_cores
from iel.errors import install

PACKAGES = ("iel", "numpy", "scipy", "jax", "jaxlib", "equinox", "optax", "safetensors")
EXTRAS = {"gymnasium": "sim", "mujoco": "sim", "ogbench": "sim", "tensorboardX": "tensorboard", "starlette": "serve"}


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Check this machine: versions, devices, rendering, directories. Says what to fix."""

    def __call__(self) -> Facts:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        from iel.data.catalogue import data_directory

        problems: list[str] = []
        found: Facts = {
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {len(usable_cores())} cores",
            "versions": _versions(problems),
            "devices": _devices(problems),
            "rendering": _rendering(),
            "data_directory": _writable(data_directory(), "set IEL_DATA to a directory you can write to", problems),
            "run_directory": _writable(Path("runs"), "start iel somewhere you can write", problems),
            "problems": problems,
            "healthy": not problems,
        }
        versions = found["versions"]
        table = Table.grid(padding=(0, 2))
        table.add_row("python", f"{found['python']} on {found['machine']}")
        table.add_row("packages", ", ".join(f"{name} {version}" for name, version in versions.items() if version))
        for extra in dict.fromkeys(EXTRAS.values()):
            absent = [name for name, its in EXTRAS.items() if its == extra and not versions[name]]
            if absent:
                table.add_row("optional", Text(f"{', '.join(absent)}: {install(extra)}"))
        for name in ("devices", "rendering", "data_directory", "run_directory"):
            table.add_row(name.replace("run_directory", "runs").removesuffix("_directory"), Text(found[name]))
        for problem in problems:
            table.add_row(Text("fix", "bold red"), Text(problem))
        if not problems:
            simulators = all(find_spec(name) for name, extra in EXTRAS.items() if extra == "sim")
            own = "train on logs of your own: `iel train --data FILE`"
            table.add_row(Text("all well", "bold green"), "try `iel demo`" if simulators else own)
        Console(highlight=False).print(table)
        return found


def _versions(problems: list[str]) -> dict[str, str | None]:
    """Version of each package, None where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in (*PACKAGES, *EXTRAS):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
            if name in PACKAGES:
                problems.append(f"The package {name} is missing; run `make install`.")
    return versions


def _devices(problems: list[str]) -> str:
    try:
        import jax

        devices = jax.devices()
    except (ImportError, RuntimeError) as error:
        problems.append(f"JAX cannot start ({error}); reinstall jax and jaxlib in equal versions.")
        return "none"
    kinds = ", ".join(f"{device.platform}:{device.id}" for device in devices)
    return kinds + (" (CPU only: use the presets `smoke` and `laptop`)" if devices[0].platform == "cpu" else "")


def _rendering() -> str:
    """Whether MuJoCo can render, for camera images. It is tried in a process of its own, since drivers may crash."""
    if find_spec("mujoco") is None:
        return "no MuJoCo, so no camera images; everything else works without it"
    from iel.viz.rendering import find_backend

    backend = find_backend()
    if backend is None:
        return "no offscreen MuJoCo (install EGL or OSMesa for camera images); everything else works without it"
    return f"MuJoCo renders offscreen with MUJOCO_GL={backend}"


def _writable(directory: Path, remedy: str, problems: list[str]) -> str:
    try:
        existing = directory if directory.exists() else next(p for p in directory.absolute().parents if p.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        problems.append(f"{directory} cannot be written ({error.strerror}); {remedy}.")
        return f"{directory} (not writable)"
    return f"{directory} (writable{'' if directory.exists() else ', created on first use'})"
