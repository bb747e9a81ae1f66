"""Train the direction-following ant controller by soft actor-critic (SAC).

    python scripts/train_ant.py --out runs/ant [--steps 400000] [--seed 0] [--resume]

The task: a unit direction d, redrawn every 100 steps; the reward of a step is 10 (displacement along d) + 0.3. An
episode ends when the torso lies on its side or back; at 500 steps it is merely cut, and the value goes on. Physics
are those of `online-ant-v0`, which equal the ant in OGBench's mazes; every draw comes from a generator of our own.
With --maze-ants, some of the eight ants walk in a maze where the driver of the data makers gives the directions: they
meet walls, and learn not to be turned over by them.

With alpha the temperature, pi the tanh-Gaussian policy and Q1, Q2 two critics with slow targets Q1', Q2':

    y        = r + gamma (1 - terminated) [min_k Qk'(x', a') - alpha log pi(a' | x')],   a' ~ pi(. | x')
    L_critic = sum_k mean (Qk(x, a) - y)^2
    L_actor  = mean [alpha log pi(a | x) - min_k Qk(x, a)],                               a ~ pi(. | x)
    L_alpha  = -log alpha * mean [log pi(a | x) + H],                                     H = target entropy

x' keeps the direction the step was taken for, also where a new one is drawn for the next step.

Every 20,000 steps everything is saved as OUT/state.safetensors (networks, optimisers, the replay buffer; --resume goes
on from there with fresh episodes) and the policy alone as OUT/ant-STEP.safetensors.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import ogbench.online_locomotion  # noqa: F401  registers online-ant-v0
import optax

from iel.data.make.ant import ACTIONS, FEATURES, LOG_STD_RANGE, AntController, features, to_motors, upright
from iel.data.make.episodes import Driver
from iel.data.make.recipes import recipe
from iel.envs import make_env
from iel.nn import MLP
from iel.serial import fill, load_arrays, named_arrays, save_arrays

REWARD_SCALE, ALIVE, DISCOUNT, TARGET_RATE = 10.0, 0.3, 0.99, 0.005
DIRECTION_STEPS, EPISODE_STEPS, FRAME_SKIP = 100, 500, 5
WIDTH, BATCH, LEARNING_RATE = 256, 256, 3e-4
CAPACITY, MAZE = 400_000, "antmaze-large-navigate-v0"
ANTS, STEPS_A_CYCLE, WARM_UP = 8, 16, 5000
"""Ants walking side by side; steps of each between two calls of the compiled updates; random steps at the start."""


class Batch(NamedTuple):
    """Transitions, canonical as in `iel.data.make.ant`."""

    x: Any
    action: Any
    reward: Any
    next_x: Any
    terminated: Any


class Learner(NamedTuple):
    """Everything that training changes."""

    actor: MLP
    critics: tuple[MLP, MLP]
    targets: tuple[MLP, MLP]
    log_alpha: jax.Array
    actor_optimiser: Any
    critic_optimiser: Any
    alpha_optimiser: Any


OPTIMISER = optax.adam(LEARNING_RATE)


def initial_learner(key: jax.Array) -> Learner:
    """Networks drawn from `key`; targets equal to the critics."""
    keys = jax.random.split(key, 3)
    actor = MLP(keys[0], FEATURES, (WIDTH, WIDTH), 2 * ACTIONS, layer_norm=False, last_scale=1e-2)
    critics = tuple(MLP(k, FEATURES + ACTIONS, (WIDTH, WIDTH), 1) for k in keys[1:])
    log_alpha = jnp.asarray(np.log(0.2), jnp.float32)
    optimisers = [OPTIMISER.init(part) for part in (actor, critics, log_alpha)]
    return Learner(actor, critics, jax.tree.map(jnp.array, critics), log_alpha, *optimisers)


def sample_action(actor: MLP, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(a, log pi(a | x)) with a = tanh(u), u ~ N(mu, sigma^2): log pi = log N(u) - sum log(1 - a^2)."""
    mean, log_std = jnp.split(actor(x), 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD_RANGE)
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * (jnp.square(noise) + 2.0 * log_std + jnp.log(2.0 * jnp.pi))
    # log(1 - tanh(u)^2) without cancellation.
    log_prob -= 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), log_prob.sum(-1)


def q_values(critics: tuple[MLP, MLP], x: jax.Array, action: jax.Array) -> jax.Array:
    """(2, batch) values of both critics."""
    inputs = jnp.concatenate([x, action], -1)
    return jnp.stack([critic(inputs)[:, 0] for critic in critics])


def update(state: Learner, batch: Batch, key: jax.Array, target_entropy: float) -> tuple[Learner, jax.Array]:
    """One step of every loss of the module's docstring; returns (state, [Q, log pi, alpha, critic loss])."""
    alpha = jnp.exp(state.log_alpha)
    key_next, key_now = jax.random.split(key)
    next_action, next_log_prob = sample_action(state.actor, batch.next_x, key_next)
    next_q = q_values(state.targets, batch.next_x, next_action).min(0) - alpha * next_log_prob
    target = batch.reward + DISCOUNT * (1.0 - batch.terminated) * next_q

    def critic_loss(critics):
        q = q_values(critics, batch.x, batch.action)
        return jnp.square(q - target).mean(-1).sum(), q.mean()

    (loss, q_mean), gradient = jax.value_and_grad(critic_loss, has_aux=True)(state.critics)
    change, critic_optimiser = OPTIMISER.update(gradient, state.critic_optimiser)
    critics = eqx.apply_updates(state.critics, change)

    def actor_loss(actor):
        action, log_prob = sample_action(actor, batch.x, key_now)
        return (alpha * log_prob - q_values(critics, batch.x, action).min(0)).mean(), log_prob.mean()

    (_, log_prob), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
    change, actor_optimiser = OPTIMISER.update(gradient, state.actor_optimiser)
    actor = eqx.apply_updates(state.actor, change)

    change, alpha_optimiser = OPTIMISER.update(-(log_prob + target_entropy), state.alpha_optimiser)
    log_alpha = state.log_alpha + change
    targets = optax.incremental_update(critics, state.targets, TARGET_RATE)
    state = Learner(actor, critics, targets, log_alpha, actor_optimiser, critic_optimiser, alpha_optimiser)
    return state, jnp.stack([q_mean, log_prob, alpha, loss])


@partial(jax.jit, donate_argnums=0, static_argnums=3)
def many_updates(state: Learner, batches: Batch, key: jax.Array, target_entropy: float) -> tuple[Learner, jax.Array]:
    """`update` over the leading axis of `batches`, in one compiled call."""
    keys = jax.random.split(key, len(batches.reward))
    state, facts = jax.lax.scan(lambda s, item: update(s, item[0], item[1], target_entropy), state, (batches, keys))
    return state, facts.mean(0)


class Herd:
    """Ants that each have a direction to follow: the first `maze_count` in a maze, the others on an endless floor."""

    def __init__(self, count: int, maze_count: int, rng: np.random.Generator):
        env: Any = gymnasium.make("online-ant-v0").unwrapped
        assert env.frame_skip == FRAME_SKIP and np.all(np.abs(env.model.actuator_ctrlrange) == 1.0)
        walled = make_env(MAZE)
        self.plan, self.maze = recipe(MAZE), walled.map
        self.initial = env.init_qpos.copy()
        self.pilots: list[Driver | None] = [None] * count
        simulator: Any = walled.unwrapped
        self.models = [simulator.model if index < maze_count else env.model for index in range(count)]
        self.worlds = [mujoco.MjData(model) for model in self.models]
        self.maze_count = maze_count
        self.rng, self.age = rng, np.zeros(count, int)
        self.directions = np.zeros((count, 2))
        self.observations = np.zeros((count, 29))
        self.finished: list[tuple[bool, float, int, bool]] = []
        """(in the maze, displacement along the command a step, length, fell) of episodes that ended."""
        self.progress = np.zeros(count)
        for index in range(count):
            self._reset(index)
            self.age[index] = rng.integers(EPISODE_STEPS)

    def _reset(self, index: int) -> None:
        """Stand at a random heading; one in four starts tilted, in mid-air and moving."""
        world, rng = self.worlds[index], self.rng
        mujoco.mj_resetData(self.models[index], world)
        world.qpos[:] = self.initial + rng.uniform(-0.1, 0.1, 15)
        world.qvel[:] = 0.1 * rng.standard_normal(14)
        yaw, tilt, towards = rng.uniform(-np.pi, np.pi), 0.0, rng.uniform(-np.pi, np.pi)
        if rng.random() < 0.25:
            tilt = rng.uniform(0.0, 0.4 * np.pi)
            world.qpos[2] += 0.4 * np.sin(tilt)
            world.qvel[:6] = rng.standard_normal(6)
        lean = np.array([np.cos(tilt / 2), np.sin(tilt / 2) * np.cos(towards), np.sin(tilt / 2) * np.sin(towards), 0])
        mujoco.mju_mulQuat(world.qpos[3:7], np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]), lean)
        world.qpos[:2] = 0.0
        if index < self.maze_count:
            start = int(rng.integers(len(self.maze.free)))
            world.qpos[:2] = self.maze.centre(self.maze.free[start]) + rng.uniform(-1.0, 1.0, 2)
            self.pilots[index] = Driver(self.plan, self.maze, rng, start)
        mujoco.mj_forward(self.models[index], world)
        self.age[index], self.progress[index] = 0, 0.0
        self._observe(index)
        self._redirect(index)

    def _redirect(self, index: int) -> None:
        """The direction of the next step: the driver's in the maze, on the floor a new one every 100 steps."""
        if pilot := self.pilots[index]:
            pilot.reach_target(self.observations[index, :2])
            self.directions[index] = pilot(self.observations[index, :2])
        elif self.age[index] % DIRECTION_STEPS == 0:
            angle = self.rng.uniform(-np.pi, np.pi)
            self.directions[index] = np.cos(angle), np.sin(angle)

    def _observe(self, index: int) -> None:
        world = self.worlds[index]
        self.observations[index, :15], self.observations[index, 15:] = world.qpos, world.qvel

    def step(self, motors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(reward, next observation for the old direction, terminated) of every ant; those that ended start anew."""
        before = self.observations[:, :2].copy()
        for index, (world, motor) in enumerate(zip(self.worlds, motors, strict=True)):
            world.ctrl[:] = motor
            mujoco.mj_step(self.models[index], world, nstep=FRAME_SKIP)
            self._observe(index)
        following = self.observations.copy()
        along = ((following[:, :2] - before) * self.directions).sum(1)
        fallen = (upright(following) < 0.0) | ~np.isfinite(following).all(1)
        self.progress += along
        self.age += 1
        for index in range(len(self.worlds)):
            if fallen[index] or self.age[index] >= EPISODE_STEPS:
                age = int(self.age[index])
                walled = index < self.maze_count
                self.finished.append((walled, self.progress[index] / age, age, bool(fallen[index])))
                self._reset(index)
            else:
                self._redirect(index)
        return REWARD_SCALE * along + ALIVE, following, fallen


class Replay:
    """The last `capacity` transitions."""

    def __init__(self, capacity: int):
        shapes = Batch((FEATURES,), (ACTIONS,), (), (FEATURES,), ())
        self.rows = Batch(*(np.zeros((capacity, *shape), np.float32) for shape in shapes))
        self.total, self.capacity = 0, capacity

    def add(self, *columns: np.ndarray) -> None:
        position = (self.total + np.arange(len(columns[0]))) % self.capacity
        for row, column in zip(self.rows, columns, strict=True):
            row[position] = column
        self.total += len(position)

    def sample(self, rng: np.random.Generator, updates: int) -> Batch:
        index = rng.integers(min(self.total, self.capacity), size=(updates, BATCH))
        return Batch(*(row[index] for row in self.rows))


def inputs_of(observations: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Network inputs and quarter turns of all ants."""
    inputs, turns = zip(*map(features, observations, directions), strict=True)
    return np.stack(inputs), turns


def save(path: Path, tree: Any) -> None:
    """Named arrays under a temporary name first, so that the final name is only ever a whole file."""
    temporary = path.with_suffix(".tmp")
    save_arrays(temporary, named_arrays(tree))
    temporary.replace(path)


def train(options: argparse.Namespace) -> None:
    """Collect and learn until `options.steps` environment steps."""
    state = initial_learner(jax.random.key(options.seed))
    replay, done, resume_from = Replay(CAPACITY), 0, options.out / "state.safetensors"
    if options.resume and resume_from.is_file():
        saved_tree = fill((state, replay.rows, np.array(0)), load_arrays(resume_from), str(resume_from))
        state, replay.rows, replay.total = saved_tree[0], Batch(*map(np.array, saved_tree[1])), int(saved_tree[2])
        done = replay.total
    rng = np.random.default_rng([options.seed, done])
    herd = Herd(ANTS, options.maze_ants, rng)
    per_cycle, began, reported, saved = ANTS * STEPS_A_CYCLE, time.perf_counter(), done, done
    updates = round(per_cycle * options.updates_a_step)
    facts_of_updates = np.zeros(4)
    while done < options.steps:
        policy = AntController(named_arrays(state.actor)).policy
        for _ in range(STEPS_A_CYCLE):
            directions = herd.directions.copy()
            x, turns = inputs_of(herd.observations, directions)
            action = rng.uniform(-1, 1, (ANTS, ACTIONS)) if done < WARM_UP else policy(x, rng)
            reward, following, terminated = herd.step(np.stack(list(map(to_motors, action, turns))))
            replay.add(x, action, reward, inputs_of(following, directions)[0], terminated)
        done += per_cycle
        if done >= WARM_UP:
            key = jax.random.fold_in(jax.random.key(options.seed), done)
            state, facts_of_updates = many_updates(state, replay.sample(rng, updates), key, options.target_entropy)
        if done - reported >= 5000:
            report(done, herd, np.asarray(facts_of_updates), time.perf_counter() - began)
            reported = done
        if done - saved >= 20000 or done >= options.steps:
            save(resume_from, (state, replay.rows, np.array(done)))
            save(options.out / f"ant-{done:07d}.safetensors", state.actor)
            saved = done


def report(step: int, herd: Herd, facts: np.ndarray, seconds: float) -> None:
    """One line on how the ants walked since the last line."""
    words = []
    for position in (False, True):
        rows = [row[1:] for row in herd.finished if row[0] == position]
        if rows:
            speed, length, fell = np.mean(rows, axis=0)
            where = "maze" if position else "floor"
            words.append(f"{where}: speed {speed:.3f}/step, {length:4.0f} steps, fell {fell:.2f}")
    herd.finished.clear()
    q, log_prob, alpha, loss = facts
    words.append(f"Q {q:7.2f}  log pi {log_prob:6.2f}  alpha {alpha:.4f}  critic loss {loss:8.3f}  {seconds:6.0f} s")
    print(f"step {step:7d}", *words, sep="  ", flush=True)


def main() -> None:
    """Parse the options and train."""
    parser = argparse.ArgumentParser(description="Train the direction-following ant controller by SAC.")
    parser.add_argument("--out", type=Path, required=True, help="directory of checkpoints and policies")
    parser.add_argument("--steps", type=int, default=400_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates-a-step", type=float, default=0.5, help="gradient steps per environment step")
    parser.add_argument("--target-entropy", type=float, default=-8.0)
    parser.add_argument("--maze-ants", type=int, default=0, help="how many of the eight ants walk in a maze")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train(options)


if __name__ == "__main__":
    main()
