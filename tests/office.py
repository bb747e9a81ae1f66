"""A robot with two wheels in an office of six rooms, and the logs of a person who drove it with a joystick.

    y
    8 +-------+-------+-------+      12 m by 8 m: three rooms on each side of a corridor, a door of 1 m to each
      |       |       |       |
    5 +--   --+--   --+--   --+
      |       corridor        |
    3 +--   --+--   --+--   --+
      |       |       |       |
    0 +-------+-------+-------+ x
      0       4       8      12

It observes its position, its heading as sine and cosine and the speeds of its wheels; actions are a forward speed v in
[0, 0.6] m/s and a turn rate w in [-1.6, 1.6] rad/s, five times a second.
"""

import csv
import itertools
import math
from datetime import datetime, timedelta, timezone
from pathlib import Path

import gymnasium
import numpy as np

SIZE, DOOR = (12.0, 8.0), 1.0
SHELVES, SIDES, CENTRES = (3.0, 5.0), (4.0, 8.0), (2.0, 6.0, 10.0)
LOW, HIGH = np.array([0.0, -1.6]), np.array([0.6, 1.6])
RATE, TRACK, RADIUS, HORIZON = 5.0, 0.4, 0.5, 300
COLUMNS = ("x", "y", "sin", "cos", "wheel_l", "wheel_r")


def passable(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a straight piece from a to b stays inside and crosses no wall."""
    if not (0.05 < b[0] < SIZE[0] - 0.05 and 0.05 < b[1] < SIZE[1] - 0.05):
        return False
    for height in SHELVES:
        if (a[1] - height) * (b[1] - height) <= 0 and a[1] != b[1]:
            x = a[0] + (b[0] - a[0]) * (height - a[1]) / (b[1] - a[1])
            if min(abs(x - centre) for centre in CENTRES) > DOOR / 2:
                return False
    for side in SIDES:
        if (a[0] - side) * (b[0] - side) <= 0 and a[0] != b[0]:
            y = a[1] + (b[1] - a[1]) * (side - a[0]) / (b[0] - a[0])
            if not SHELVES[0] < y < SHELVES[1]:
                return False
    return True


def crossings(route: np.ndarray) -> int:
    """How many straight pieces of a route lead through a wall."""
    return sum(not passable(a, b) for a, b in itertools.pairwise(route))


def somewhere(rng: np.random.Generator) -> np.ndarray:
    """A position in one of the rooms, 0.5 m from its walls."""
    column, row = rng.integers(3), rng.integers(2)
    return np.array([rng.uniform(4 * column + 0.5, 4 * column + 3.5), rng.uniform(0.5, 2.5) + 5 * row])


class Office(gymnasium.Env):
    """Actions are within [-1, 1], as policies give them; `drive` takes them in m/s and rad/s."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    horizon = HORIZON

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.goal = somewhere(self.np_random), somewhere(self.np_random)
        while np.linalg.norm(self.position - self.goal) < 2.0:
            self.goal = somewhere(self.np_random)
        self.heading, self.wheels = self.np_random.uniform(-math.pi, math.pi), np.zeros(2)
        return self.observation(), {"goal": {0: self.goal[0], 1: self.goal[1]}}

    def observation(self) -> np.ndarray:
        angle = math.sin(self.heading), math.cos(self.heading)
        return np.concatenate([self.position, angle, self.wheels]).astype(np.float32)

    def drive(self, command: np.ndarray) -> np.ndarray:
        """One step of v and w: the wheels follow with a lag, and stop at walls."""
        v, w = np.clip(command, LOW, HIGH)
        self.wheels += 0.6 * (np.array([v - w * TRACK / 2, v + w * TRACK / 2]) - self.wheels)
        speed, turn = self.wheels.mean(), (self.wheels[1] - self.wheels[0]) / TRACK
        self.heading = math.remainder(self.heading + turn / RATE, 2 * math.pi)
        there = self.position + speed / RATE * np.array([math.cos(self.heading), math.sin(self.heading)])
        if passable(self.position, there):
            self.position = there
        else:
            self.wheels = np.zeros(2)
        return self.observation()

    def step(self, action):
        row = self.drive(LOW + (np.asarray(action, float) + 1) * (HIGH - LOW) / 2)
        return row, 0.0, False, False, {"success": bool(np.linalg.norm(self.position - self.goal) <= RADIUS)}


def route(start: np.ndarray, end: np.ndarray) -> list[np.ndarray]:
    """Through the doors: 0.5 m before and behind each."""
    stops = []
    for position, outwards in ((start, True), (end, False)):
        if SHELVES[0] < position[1] < SHELVES[1]:
            continue
        door = CENTRES[min(int(position[0] // 4), 2)]
        side = 1.0 if position[1] >= SHELVES[1] else -1.0
        wall = SHELVES[1] if side > 0 else SHELVES[0]
        pair = [np.array([door, wall + side * 0.5]), np.array([door, wall - side * 0.5])]
        stops += pair if outwards else pair[::-1]
    same = start[0] // 4 == end[0] // 4 and (start[1] >= SHELVES[1]) == (end[1] >= SHELVES[1])
    return [end] if same else [*stops, end]


def write_logs(path: Path, episodes: int = 60, steps: int = 194, seed: int = 7, gaps: int = 0) -> Path:
    """A CSV file as people have them: names of runs, dates with a time zone, a battery, and a few empty cells."""
    rng, robot = np.random.default_rng(seed), Office()
    began = datetime(2026, 3, 2, 9, tzinfo=timezone(timedelta(hours=1)))
    table = []
    for episode in range(episodes):
        robot.reset(seed=seed * 1000 + episode)
        stops, battery = [], rng.uniform(0.5, 1.0)
        for step in range(steps):
            if not stops:
                stops = route(robot.position, somewhere(rng))
            off = stops[0] - robot.position
            if np.linalg.norm(off) < 0.2:
                stops.pop(0)
            error = math.remainder(math.atan2(off[1], off[0]) - robot.heading, 2 * math.pi)
            noise = rng.standard_normal(2)
            command = np.clip(
                [0.6 * max(0.0, math.cos(error)) + 0.05 * noise[0], 2 * error + 0.3 * noise[1]], LOW, HIGH
            )
            row = robot.observation().astype(float)
            battery -= rng.uniform(0.0, 4e-4)
            when = began + timedelta(minutes=episode, seconds=step / RATE)
            cells = [f"run-{episode}", when.isoformat(timespec="milliseconds"), *(f"{value:.5f}" for value in row)]
            table.append(
                [*cells, f"{command[0]:.4f}", f"{command[1]:.4f}", f"{battery:.5f}", "1.4", rng.integers(30, 70)]
            )
            robot.drive(command)
    for line in rng.choice(len(table), gaps, replace=False):
        table[line][rng.integers(2, 8)] = ""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "stamp", *COLUMNS, "v", "w", "battery", "firmware", "rssi"])
        writer.writerows(table)
    return path
