"""One training of a policy for several runs.

A policy that needs nothing of the geometry (`Policy.first`) is trained before it, from the data, the seed and a few
settings alone, so runs that agree in these train the same bits. The first of them leaves what it trained,

    RUN/policy/
      state.safetensors    the policy's state at the end of its phase
      metrics.csv          what was logged until there
      manifest.json        sha256 and size of both, and the fingerprint of all that decides them

and the others continue from there: their checkpoints, logs and models are those they would have had alone. A policy
that is missing, damaged or of something else is trained; nothing else depends on who was first.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import iel
from iel.errors import RunError
from iel.files import new_directory, notice, seal, verify_seal, write_bytes, write_errors
from iel.learner import Method, TrainState
from iel.serial import fill, load_arrays, named_arrays, save_arrays
from iel.training.checkpoint import Facts, Resumed, versions
from iel.training.trackers import facts_of, read_content

if TYPE_CHECKING:
    from iel.training.loop import Trainer

FORMAT = 1
STATE, METRICS = "state.safetensors", "metrics.csv"


def policy_fingerprint(algo: Method, data: str, seed: int) -> str | None:
    """Hash of all that decides a policy that needs nothing of the geometry; None where the policy is another one.

    `data` is the fingerprint of the data. What is known of the method is what `Policy.learner` may use of it.
    """
    policy = algo.policy
    if policy is None or not policy.first:
        return None
    settings = {
        **asdict(policy),
        "steps": algo.phases()[0].steps,
        "learning_rate": policy.learning_rate or algo.learning_rate,
    }
    seen = algo.batch_size, algo.policy_widths, algo.standardise, algo.cut_jumps, algo.cut_rests
    parts = policy.kind, settings, seen, data, seed, iel.__version__
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def save_policy(trainer: Trainer) -> None:
    """At the end of the policy's phase, leave what was trained for the others; later there is nothing to do."""
    ((seed, run),) = trainer.runs.items()
    fingerprint, final = policy_fingerprint(trainer.algo, trainer.fingerprint, seed), run.path / "policy"
    if fingerprint is None or trainer.step != trainer.phases[0].steps or final.exists():
        return
    with write_errors("The policy", final), new_directory(final) as partial:
        save_arrays(partial / STATE, named_arrays(trainer.states()[0][trainer.phases[0].slot]))
        write_bytes(partial / METRICS, read_content(run.path / METRICS))
        seal(partial, FORMAT, versions(), policy=fingerprint)


def load_policy(trainer: Trainer) -> Resumed[dict[str, TrainState]] | None:
    """Where a new training continues with a policy that another run trained; None where there is none."""
    for other in trainer.policy_with:
        ((seed, run),), (state,) = trainer.runs.items(), trainer.state
        fingerprint, directory = policy_fingerprint(trainer.algo, trainer.fingerprint, seed), other / "policy"
        if fingerprint is None or not directory.is_dir():
            continue
        phase = trainer.phases[0]
        try:
            if verify_seal(directory, FORMAT, (STATE, METRICS), remedy="remove it").get("policy") != fingerprint:
                raise RunError(f"{directory} is the policy of another training.")
            trained = fill(state[phase.slot], load_arrays(directory / STATE), str(directory / STATE))
            metrics = read_content(directory / METRICS)
        except RunError as error:
            notice(f"skipped a policy: {error}")
            continue
        write_bytes(run.path / METRICS, metrics)
        trainer.policy_with = ()  # the others find it where it is
        facts = Facts(phase.steps, phase.name, seed, facts_of(metrics))
        return Resumed(phase.steps, [{**state, phase.slot: trained}], {seed: facts})
    return None
