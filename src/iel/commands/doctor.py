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
SIMULATORS = ("gymnasium", "mujoco", "ogbench")
EXTRAS = {"gymnasium": "sim", "mujoco": "sim", "ogbench": "sim", "tensorboardX": "tensorboard", "starlette": "serve"}


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Check this machine: versions, devices, rendering, directories. Says what to fix."""

    def __call__(self) -> Facts:
        from rich.console import Console
        from rich.markup import escape

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
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"python      {found['python']} on {found['machine']}")
        packages = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        console.print(f"packages    {escape(packages)}")
        simulators = all(find_spec(name) for name in SIMULATORS)
        for name in ("devices", "rendering", "data_directory", "run_directory"):
            console.print(f"{name.removesuffix('_directory'):<11} {escape(found[name])}")
        for problem in problems:
            console.print(f"[bold red]fix[/bold red]         {escape(problem)}")
        if not problems:
            next_step = "try `iel demo`" if simulators else "train on logs of your own: `iel train --data FILE`"
            console.print(f"[bold green]all well[/bold green]    {next_step}")
        return found


def _versions(problems: list[str]) -> dict[str, str]:
    versions = {}
    for name in (*PACKAGES, *EXTRAS):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            optional = f"not installed (optional; {install(EXTRAS.get(name, ''))})"
            versions[name] = optional if name in EXTRAS else "missing"
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
    none = " (no accelerator: presets `smoke` and `laptop` are for this)"
    return kinds + (none if devices[0].platform == "cpu" else "")


def _rendering() -> str:
    """Offscreen rendering is optional: our pictures are drawn by matplotlib. A crash of the driver must not be ours."""
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
    return f"{directory} (writable{'' if directory.exists() else ', made when needed'})"
