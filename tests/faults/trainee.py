"""A real training in a process of its own, for others to kill: `python trainee.py OUT DATA.npz [options]`.

It starts the run or continues it, whichever is the case, exactly as a user's script would. Prints `step N` with
the step it starts from as soon as training begins.
"""

import argparse
import os
import resource
import signal
from pathlib import Path

import rich.progress  # noqa: F401  a process that has given up being root may not be able to import it

import iel.training.loop as loop
from iel import files
from iel.data import load
from iel.methods import IEL
from iel.policies import Directions
from iel.training import checkpoint, train
from iel.training.loop import Trainer

STEPS, EVERY = 400, 20
TINY = {"hidden": (16,), "batch_size": 16, "dimension": 4, "omega_share": 4 / 11}


def tiny(steps: int) -> IEL:
    """All three phases, `steps` in all; of 400 their ends (80 and 220) coincide with a save, with `every=30` not."""
    geometry = steps * 11 // 20
    return IEL.preset("smoke", **TINY, steps=geometry, policy=Directions(steps=steps - geometry, target_rate=0.05))


def kill_during_save(number: int, part: str) -> None:
    """SIGKILL this process inside its `number`-th save, at the moment called `part`."""
    saves = 0
    original = {name: getattr(loop, name) for name in ("save_checkpoint", "prune")}

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def half_a_file(path: Path, arrays: dict) -> None:
        write(path, arrays)
        os.truncate(path, path.stat().st_size // 2)
        die()

    def rename_and_die(partial: Path, final: Path) -> None:
        partial.rename(final)
        die()

    write = checkpoint.save_arrays

    def save(*arguments, **keywords):
        nonlocal saves
        saves += 1
        if saves == number:
            if part == "half a file":
                checkpoint.save_arrays = half_a_file
            elif part == "no manifest":
                checkpoint.seal = die
            elif part == "before the rename":
                files.replace_directory = die
            elif part == "after the rename":
                files.replace_directory = rename_and_die
            elif part == "before the old one goes":
                loop.prune = die
        return original["save_checkpoint"](*arguments, **keywords)

    loop.save_checkpoint = save


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--die", nargs=2, metavar=("SAVE", "PART"))
    parser.add_argument("--user", type=int, help="give up being root")
    parser.add_argument("--blind", action="store_true", help="do not look at the free space before writing")
    parser.add_argument("--file-size", type=int, help="largest file this process may write, in bytes")
    options = parser.parse_args()
    if options.die:
        kill_during_save(int(options.die[0]), options.die[1])
    if options.blind:
        checkpoint.require_space = lambda *_: None
    fit = Trainer.fit

    def announce(self, *arguments):
        print(f"step {self.step}", flush=True)
        if options.file_size:
            resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_size, options.file_size))
        if options.user is not None and os.getuid() == 0:
            os.seteuid(options.user)
        return fit(self, *arguments)

    Trainer.fit = announce  # type: ignore[method-assign]
    train(
        load(options.data),
        tiny(options.steps),
        options.seeds,
        out=options.out,
        resume=True,
        checkpoint_every=options.every,
        progress=False,
    )


if __name__ == "__main__":
    from iel.errors import IELError

    try:
        main()
    except IELError as error:
        raise SystemExit(f"iel: {error}") from None
