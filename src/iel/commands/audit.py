"""`iel audit` and `iel diagnose`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

import iel
from iel.commands.common import ActingCommand, Facts, GraphOptions, RunCommand, known_environment
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.evaluation.agreement import KnownMaze
    from iel.training import Run


@dataclass(frozen=True, kw_only=True)
class AuditCommand(RunCommand):
    """How far can this geometry be trusted? Order, calibration, progress at independent goals, with intervals.

    In a maze, also how the steps between all ordered pairs of some states agree with the exact ones: those that the
    metric predicts (direct), and those along the graph of a planner.
    """

    data: Path | None = None
    """Audit on these trajectories (default: the validation set of the run's data, which training never saw)."""
    seed: int = 0
    """Seed of the pairs that are drawn."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/audit.png); costs that are not in steps are not drawn."""
    states: int = 60
    """In a maze: states whose ordered pairs are compared; 0 leaves that out."""
    along: tuple[Literal["asym-graph", "sym-graph", "gas-graph"], ...] = ("asym-graph",)
    """Planners whose graphs, over the training data, are compared there."""
    graph: Annotated[GraphOptions, tyro.conf.OmitArgPrefixes] = GraphOptions()

    def __call__(self) -> Facts:
        from iel.evaluation.agreement import KnownMaze
        from iel.theory import audit_costs, audit_embedding
        from iel.theory.diagnostics import when_it_works
        from iel.viz.audit import draw_audit

        run = iel.open_run(self.run)
        model = run.model
        if model.metric is None:
            raise ConfigError(f"{run.path} is a run of {run.config['algo']}, which learned no distances to audit.")
        if model.metric.discount is None and self.picture is not None:
            raise ConfigError("The costs of this run are not in steps, and only steps are drawn; leave --picture out.")
        data, seen = audit_data(run, self.data)
        observations = data.observations
        generator = np.random.default_rng(self.seed)
        facts = {"run": str(run.path), "algo": run.config["algo"], "name": data.name}

        def cost(i: np.ndarray, j: np.ndarray) -> np.ndarray:
            return model.cost(observations[i], observations[j], observations[j])

        maze = KnownMaze.of(known_environment(run.env) or "")
        exact = maze.between(observations) if maze is not None and maze.in_steps else None
        facts["agreement"], words = self._agreement(run, observations, maze)
        if model.metric.discount is None:
            found = audit_costs(data.offsets, cost=cost, exact=exact, data=seen, generator=generator)
            print("\n".join([*found.sentences(), *words]))
            return {**facts, **found.to_dict()}
        # A method that learned no embedding has no latent dynamics to measure.
        embeddings = model.embed(observations) if "embedding" in model.networks else None

        def predicted(i: np.ndarray, j: np.ndarray) -> np.ndarray:
            return model.steps(observations[i], observations[j])

        audit = audit_embedding(
            data.offsets,
            predicted=predicted,
            cost=cost,
            discount=model.metric.discount,
            exact=exact,
            embeddings=embeddings,
            actions=data.actions,
            data=seen,
            generator=generator,
        )
        conditions = embeddings is not None and when_it_works(
            embeddings, data.actions, data.offsets, generator, attributes=observations, predicted=predicted
        )
        picture = self.picture or run.folder("plots") / "audit.png"
        draw_audit(audit, picture)
        print("\n".join([*audit.sentences(), *(conditions.sentences() if conditions else []), *words]))
        print(f"drawn in {picture}")
        return {**facts, "picture": str(picture), "conditions": conditions and asdict(conditions), **audit.to_dict()}

    def _agreement(self, run: Run, observations: np.ndarray, maze: KnownMaze | None) -> tuple[Facts | None, list[str]]:
        """Steps between all ordered pairs of some states against the maze's, for programs and in words."""
        from iel.evaluation.agreement import agreements
        from iel.theory.audit import json_safe

        if maze is None or not self.states:
            return None, []
        drawn = np.random.default_rng(self.seed).choice(len(observations), self.states, replace=False)
        model, data = run.model, run.data()
        planners = {name: self.graph.agent(name, model, data).planner for name in ("direct", *self.along)}
        found = agreements(model, planners, observations[drawn], maze, self.seed)
        words = [each.sentence(f"All ordered pairs of {self.states} states, {name}") for name, each in found.items()]
        return json_safe({"states": self.states, **found}), words


@dataclass(frozen=True, kw_only=True)
class DiagnoseCommand(ActingCommand):
    """Why does an agent fail? Coverage, graph, routes, predicted steps, policy and episodes, each with a remedy."""

    episodes: int = 4
    """Episodes per task to look at; 0 checks the data and the model only."""
    seed: int = 0
    """Seed of the episodes and of the states that are drawn."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/diagnosis.png)."""

    def __call__(self) -> Facts:
        from iel.commands.pictures import ground
        from iel.evaluation import Arena
        from iel.evaluation.diagnosis import diagnose
        from iel.model.support import support_of
        from iel.viz.diagnosis import draw_diagnosis

        run = iel.open_run(self.run)
        model, data = run.model, run.data(self.planning.data)
        held, seen = audit_data(run, self.planning.data)
        planner = self.planning.agent("asym-graph" if model.algo == "gas" else None, model, data).planner
        rollouts, maze = None, None
        known = self.environment.world(run.model.signals) or known_environment(run.env)
        if self.episodes and known is not None:
            protocol = iel.Protocol(self.episodes, None, self.seed, self.environment.max_steps)
            arena = Arena(known, protocol, reference=data.observations[0])
            rollouts, maze = arena.rollout(model, planner, planner.name), arena.map
        graph = planner if isinstance(planner, iel.AsymGraph) else None
        support = model.support or support_of(data)
        diagnosis = diagnose(model, held, support, planner=graph, rollouts=rollouts, maze=maze, seed=self.seed)
        picture = self.picture or run.folder("plots") / "diagnosis.png"
        nodes = None if graph is None else graph.observations[graph.states]
        draw_diagnosis(picture, diagnosis, maze or ground(data), nodes, rollouts)
        print("\n".join(str(finding) for finding in diagnosis.findings))
        print(f"{diagnosis.verdict} Steps and policy were measured on {seen}.")
        print(f"drawn in {picture}")
        return {"run": str(run.path), "data": seen, "picture": str(picture), **diagnosis.as_dict()}


def audit_data(run: Run, file: Path | None) -> tuple[iel.Trajectories, str]:
    """The trajectories to audit on, and in words whether training saw them.

    The validation set that was made with the training set, by the same recipe, if both are on this machine; else the
    training set.
    """
    from iel.data.catalogue import recipe_version, stored

    facts = run.config["data"]
    for episodes in (facts["episodes"], None) if file is None else ():  # the run's own size first
        sets = stored(facts["name"], episodes)
        recipes = {recipe_version(path) for path in sets if iel.load(path).fingerprint == facts["fingerprint"]}
        for path in stored(facts["name"], episodes, split="val"):
            if recipe_version(path) in recipes:
                return iel.load(path), "the validation set, which training never saw"
    data = run.data(file)
    if data.fingerprint == facts["fingerprint"]:
        return data, "the training data itself, so new states may be predicted worse"
    return data, f"{file}, which is not the file this run was trained on (whether it shares episodes is not known)"
