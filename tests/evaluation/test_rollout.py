"""Evaluation: seeded to the bit, and intervals that mean something."""

import numpy as np
import pytest

from iel.envs import make_env
from iel.errors import ConfigError, NoPath, RunError
from iel.evaluation import Arena, Protocol
from iel.evaluation.distances import BANDS
from iel.evaluation.result import Result, summarise, table
from iel.evaluation.stats import success_interval
from iel.model.model import PlanningModel
from iel.planning import Target

MAZE = "pointmaze-medium-navigate-v0"


class Compass(PlanningModel):
    """A model whose latent space is the plane, and a planner that heads straight for the goal: enough to move."""

    def embed(self, observations):
        return np.asarray(observations, np.float32)

    def command(self, observations, target, embeddings):
        delta = target.point - embeddings
        return delta / (np.linalg.norm(delta, axis=1, keepdims=True) + 1e-9)

    def act(self, observations, commands, generator=None):
        noise = 0.0 if generator is None else 0.3 * generator.standard_normal(commands.shape)
        return np.clip(commands + noise, -1, 1).astype(np.float32)

    def plan(self, goals):
        self.goals = np.asarray(goals)
        return self

    def __len__(self):
        return len(self.goals)

    def target(self, embeddings, memory, rows):
        goals = self.goals[rows]
        return Target(goals, goals, np.ones(len(goals), bool), goals, goals, np.ones(len(goals)))


class Cut(Compass):
    """No route leads to the goals of two episodes of three, to those of the second kind not from step 10 on."""

    step = 0

    def target(self, embeddings, memory, rows):
        self.step += 1
        stuck = [row for row in rows.tolist() if row % 3 == 0 or (row % 3 == 1 and self.step > 10)]
        if stuck:
            raise NoPath("No way leads to the goal.", stuck)
        return super().target(embeddings, memory, rows)


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena(MAZE, Protocol(episodes=2, max_steps=120))


def test_two_evaluations_agree_exactly(arena):
    first, second = (arena.rollout(Compass(), Compass(), "compass", progress=False) for _ in range(2))
    assert np.array_equal(first.success, second.success) and np.array_equal(first.steps, second.steps)
    for one, other in zip(first.paths, second.paths, strict=True):
        assert np.array_equal(one, other)


def test_a_goal_without_a_route_is_an_episode_that_failed(arena, capsys):
    whole = arena.rollout(Compass(), Compass(), "compass", progress=False)
    cut = arena.rollout(Compass(), Cut(), "cut", progress=False)
    for episode, (path, expected) in enumerate(zip(cut.paths, whole.paths, strict=True)):
        if episode % 3 == 2:
            assert np.array_equal(path, expected)
        else:
            assert not cut.success[episode] and cut.steps[episode] == 120
            assert len(path) == 1 if episode % 3 == 0 else 1 < len(path) < 12
    assert "which count as failed" in capsys.readouterr().err


def test_sampled_actions_follow_from_the_protocols_seed_and_the_protocol_says_so(arena):
    mean = arena.rollout(Compass(), Compass(), "compass", progress=False)
    sampled = [Arena(MAZE, Protocol(episodes=2, max_steps=40, seed=seed, action="sample")) for seed in (0, 0, 1)]
    first, second, other = (a.rollout(Compass(), Compass(), "compass", progress=False) for a in sampled)
    assert all(np.array_equal(a, b) for a, b in zip(first.paths, second.paths, strict=True))
    assert not np.array_equal(first.paths[0], mean.paths[0][:41]) and not np.array_equal(first.paths[0], other.paths[0])
    assert sampled[0].describe()["action"] == "policy sample" and arena.describe()["action"] == "policy mean"
    with pytest.raises(ConfigError, match="mean, sample or unstick"):
        Protocol(action="guess")


def test_rollouts_are_what_stepping_alone_gives(arena):
    together = arena.rollout(Compass(), Compass(), "compass", progress=False)
    task, episode = arena.episodes[3]
    seed = int(np.random.SeedSequence([0, int(task), int(episode)]).generate_state(1)[0])
    env = make_env(MAZE)
    observation, info = env.reset(seed=seed, options={"task_id": int(task)})
    compass, path = Compass().plan(np.float32(info["goal"])[None]), [np.float32(observation)]
    for _ in range(len(together.paths[3]) - 1):
        here = path[-1][None]
        action = compass.act(None, compass.command(None, compass.target(here, None, np.array([0])), here))[0]
        path.append(np.float32(env.step(action)[0]))
    assert np.array_equal(together.paths[3], path)


def test_success_ends_an_episode_at_its_step(arena):
    rollouts = arena.rollout(Compass(), Compass(), "compass", progress=False)
    for path, steps, success in zip(rollouts.paths, rollouts.steps, rollouts.success, strict=True):
        assert len(path) == steps + 1 and (success or steps == 120)


def test_summary_has_the_documented_shape(arena):
    rollouts = arena.rollout(Compass(), Compass(), "compass", progress=False)
    one = summarise([Result.of(rollouts, MAZE, "", 0, arena.describe())])
    assert one["env"] == MAZE and one["protocol"]["tasks"] == 5 and one["protocol"]["episodes_per_task"] == 2
    numbers = one["planners"]["compass"]
    assert 0 <= numbers["interval"][0] <= numbers["success_rate"] <= numbers["interval"][1] <= 1
    assert list(numbers["per_task"]) == [f"task{k}" for k in range(1, 6)]
    several = summarise([Result.of(rollouts, MAZE, "", seed, arena.describe()) for seed in (0, 1)])
    assert several["planners"]["compass"]["success_rate"] == numbers["success_rate"]
    assert several["protocol"]["training_seeds"] == 2
    assert table(one).row_count == 1


def test_success_by_distance_starts_and_ends_in_cells_so_far_apart():
    arena = Arena(MAZE, Protocol(episodes=6, max_steps=120, by_distance=True))
    starts, goals = arena.reset(range(arena.num_envs))
    maze = arena.map
    cells = [maze.number[tuple(maze.cell_of(positions[:, :2]).T)] for positions in (starts, goals)]
    moves = maze.cell_distances[tuple(cells)]
    low, high = zip(*(BANDS[task - 1] for task in arena.episodes[:, 0]), strict=True)
    assert (moves >= low).all() and (moves <= [most or np.inf for most in high]).all()
    assert len({tuple(position) for position in np.round(starts)}) > 6  # not the five tasks
    rollouts = arena.rollout(Compass(), Compass(), "compass", progress=False)
    rates = [numbers["success_rate"] for numbers in rollouts.summary()["per_task"].values()]
    assert rates[0] == 1.0 and rates[-1] == 0.0  # a compass is enough for a neighbour, and ends at a wall
    assert next(iter(rollouts.summary()["per_task"])) == "1-2 cells" and arena.describe()["by_distance"]
    with pytest.raises(ConfigError, match="starts and goals of its own"):
        Arena("antmaze-umaze", Protocol(by_distance=True))


@pytest.mark.parametrize("settings", [{"action": "sample"}, {"by_distance": True}])
def test_the_number_of_workers_changes_no_bit(settings):
    """Episodes end at different steps, so that the rows of a step come from all processes, from some or from one."""
    protocol = Protocol(episodes=2, max_steps=120, **settings)
    one, *others = (
        [arena.rollout(Compass(), Compass(), "compass", progress=False) for _ in range(2)]
        for arena in (Arena(MAZE, protocol, workers=workers) for workers in (1, 2, 3))
    )
    for other in others:
        for mine, theirs in zip(one, other, strict=True):
            assert np.array_equal(mine.steps, theirs.steps) and np.array_equal(mine.success, theirs.success)
            assert np.array_equal(mine.goals, theirs.goals)
            assert all(np.array_equal(a, b) for a, b in zip(mine.paths, theirs.paths, strict=True))


def test_teleports_and_turns_are_the_same_on_several_workers():
    """Teleports draw while they step; three environments take turns with five episodes."""
    protocol = Protocol(episodes=1, max_steps=150)
    runs = []
    for workers in (1, 2, 3):
        arena = Arena("pointmaze-teleport-v0", protocol, workers=workers)
        arena.num_envs = 3
        runs.append(arena.rollout(Compass(), Compass(), "compass", progress=False))
    for run in runs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(runs[0].paths, run.paths, strict=True))


def test_a_process_that_fails_or_ends_is_reported_in_a_sentence(capsys):
    arena = Arena(MAZE, Protocol(episodes=1, max_steps=30), workers=2)
    arena.reset(range(5))
    (process,) = arena.simulators._processes
    process.send("step", [99], b"")
    with pytest.raises(RunError, match=r"A process that steps pointmaze-medium-.* failed: IndexError"):
        process.receive()
    arena.simulators.close()
    arena.reset(range(5))
    (process,) = arena.simulators._processes
    process.process.kill()
    with pytest.raises(RunError, match="ended with SIGKILL; use fewer --workers if memory is short"):
        arena.rollout(Compass(), Compass(), "compass", progress=False)
    again = arena.rollout(Compass(), Compass(), "compass", progress=False)  # others are started
    assert len(again.paths) == 5 and process.process.poll() is not None


def test_an_interruption_ends_the_processes(monkeypatch):
    arena = Arena(MAZE, Protocol(episodes=1, max_steps=30), workers=3)
    arena.reset(range(5))
    processes = [process.process for process in arena.simulators._processes]
    compass = Compass()

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(compass, "act", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arena.rollout(compass, compass, "compass", progress=False)
    assert [process.poll() for process in processes] == [0, 0]


def test_as_many_workers_as_episodes_and_cores_allow():
    assert Arena(MAZE, Protocol(episodes=1, tasks=(1, 2)), workers=8).workers == 2
    assert Arena(MAZE, Protocol(episodes=1, max_steps=20)).workers == 1  # too short to be worth a process
    with pytest.raises(ConfigError, match="--workers must be at least 1, but is 0"):
        Arena(MAZE, Protocol(episodes=1), workers=0)


class Robot(Compass):
    """Pushes every joint the same way, whatever the goal: enough to move."""

    def __init__(self, actions: int):
        self.actions = actions

    def act(self, observations, commands, generator=None):
        return np.full((len(observations), self.actions), 0.3, np.float32)


def test_d4rl_has_one_task_with_fresh_goals():
    arena = Arena("antmaze-umaze-diverse", Protocol(episodes=3, max_steps=4))
    rollouts = arena.rollout(Robot(8), Robot(8), "push", progress=False)
    assert rollouts.tasks.tolist() == [1, 1, 1] and rollouts.steps.tolist() == [4, 4, 4]
    assert len(np.unique(rollouts.goals[:, 0])) == 3
    summary = rollouts.summary()
    assert list(summary["per_task"]) == ["task1"] and "subtask_fraction" not in summary


def test_kitchen_reports_the_fraction_of_its_subtasks(monkeypatch):
    pytest.importorskip("gymnasium_robotics")
    from iel.envs import registry

    monkeypatch.setattr(registry, "NUM_ENVS", 2)  # three episodes take turns in two kitchens
    arena = Arena("kitchen-mixed", Protocol(episodes=3, max_steps=3), workers=1)
    assert arena.num_envs == 2
    arena.reset(range(2))
    for env in arena.simulators._own:
        kitchen = env.unwrapped
        reset = kitchen.reset

        def half_done(*, seed=None, options=None, kitchen=kitchen, reset=reset):
            observation, info = reset(seed=seed, options=options)
            kitchen.done[:2] = True
            return observation, info

        monkeypatch.setattr(kitchen, "reset", half_done)
    rollouts = arena.rollout(Robot(9), Robot(9), "push", progress=False)
    assert len(rollouts.paths) == 3 and rollouts.subtasks.tolist() == [0.5, 0.5, 0.5]
    summary = rollouts.summary()
    assert summary["subtask_fraction"] == 0.5 and summary["success_rate"] == 0.0
    shown = table(summarise([Result.of(rollouts, "kitchen-mixed", "", 0, arena.describe())]))
    assert [list(column.cells) for column in shown.columns if column.header == "fraction of subtasks"] == [["0.500"]]
    assert not np.array_equal(rollouts.paths[0], rollouts.paths[2])  # another seed in the same kitchen


def test_an_interval_of_one_agents_episodes():
    coin = np.random.default_rng(0).random(400) < 0.5
    low, high = success_interval([[coin.mean()]], 400)
    assert low < coin.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 400), rel=0.1)
    low, high = success_interval([[1.0]], 4)  # 4 of 4: Wilson's interval, never of zero width
    assert high == 1.0 and low == pytest.approx(4 / (4 + 1.96**2), abs=1e-3)


def test_it_covers_the_truth():
    """Nominal 95 % intervals of 5 tasks x 20 episodes must contain the true rate about that often."""
    rng, rates = np.random.default_rng(0), np.array([0.2, 0.4, 0.5, 0.6, 0.8])
    hits = 0
    for _ in range(400):
        low, high = success_interval([rng.binomial(20, rates) / 20], 20)
        hits += low <= rates.mean() <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_bad_protocols():
    with pytest.raises(ConfigError, match="at least one episode"):
        Protocol(episodes=0)
    with pytest.raises(ConfigError, match="tasks 1 to 5, not 9"):
        Arena(MAZE, Protocol(episodes=1, tasks=(1, 9)))
