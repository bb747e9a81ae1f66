"""A rover, the ROS 2 bag that it leaves behind, and the same rover as an environment (docs/bags.md).

python examples/bag_robot.py BAG [MINUTES]      records a bag: /odom at 100 Hz, /cmd_vel at 30 Hz, /enable at 5 Hz
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_typestore

ROOM, WALL, GAP = 10.0, 5.0, (4.0, 6.0)
"""A square room with a wall across the middle, open between these two heights (metres)."""
LOW, HIGH = np.array([0.0, -1.5]), np.array([0.8, 1.5])
"""Commands: speed (m/s) and rate of turn (rad/s)."""
TICK, TICKS = 0.01, 10
"""Physics at 100 Hz; the environment acts at 10 Hz."""
BEHIND, DRIVE = 3.7, 25.0
"""Seconds by which the clock of the rover is behind that of the recording; seconds of a drive."""


class Rover(gymnasium.Env):
    """It observes x, y, sine and cosine of its heading, speed and rate of turn; actions within [-1, 1] are commands."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    horizon = 600

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform((1.0, 1.0), (4.0, 9.0))  # starts on the left, the goal is on the right
        self.goal = self.np_random.uniform((6.0, 1.0), (9.0, 9.0))
        self.yaw, self.moving = self.np_random.uniform(-np.pi, np.pi), np.zeros(2)
        return self._observation(), {"goal": {0: self.goal[0], 1: self.goal[1]}}

    def step(self, action):
        command = LOW + (np.clip(action, -1.0, 1.0) + 1.0) * (HIGH - LOW) / 2.0
        for _ in range(TICKS):
            self.tick(command)
        success = bool(np.linalg.norm(self.position - self.goal) < 0.5)
        return self._observation(), 0.0, False, False, {"success": success}

    def tick(self, command):
        """A hundredth of a second: wheels follow commands with a lag, walls stop them."""
        self.moving = self.moving + (command - self.moving) * TICK / 0.15
        self.yaw += self.moving[1] * TICK
        ahead = self.position + self.moving[0] * TICK * np.array([np.cos(self.yaw), np.sin(self.yaw)])
        ahead = np.clip(ahead, 0.0, ROOM)
        if (self.position[0] - WALL) * (ahead[0] - WALL) <= 0 and not GAP[0] < ahead[1] < GAP[1]:
            ahead, self.moving = self.position, self.moving * [0.0, 1.0]
        self.position = ahead

    def _observation(self):
        return np.array([*self.position, np.sin(self.yaw), np.cos(self.yaw), *self.moving], np.float32)


def operator(rover, aim, rng):
    """The command of a person who drives to `aim`, through the gap, with errors."""
    near = abs(rover.position[1] - WALL) < 0.7
    other_side = (rover.position[0] - WALL) * (aim[0] - WALL) < 0
    through = np.array([WALL + (0.8 if near else -0.8) * np.sign(aim[0] - WALL), WALL])
    ahead = (through if other_side else aim) - rover.position
    turn = (np.arctan2(ahead[1], ahead[0]) - rover.yaw + np.pi) % (2 * np.pi) - np.pi
    wanted = np.array([0.8 * np.cos(turn) + 0.1, 1.5 * turn]) + rng.normal(0.0, (0.1, 0.4))
    return np.clip(wanted, LOW, HIGH)


def somewhere(side, rng):
    return rng.uniform((0.5, 0.5), (4.5, 9.5)) + np.array([5.0 if side > 0 else 0.0, 0.0])


def record(path: Path, minutes: float = 25.0, seed: int = 0) -> None:
    """Drives of a rover that is carried elsewhere in between; now and then odometry is lost for two seconds."""
    rng, rover, store = np.random.default_rng(seed), Rover(), get_typestore(Stores.ROS2_HUMBLE)
    rover.reset(seed=seed)
    with Writer(path, version=9) as bag:
        kinds = {
            "/odom": "nav_msgs/msg/Odometry",
            "/cmd_vel": "geometry_msgs/msg/Twist",
            "/enable": "std_msgs/msg/Bool",
        }
        topics = {name: bag.add_connection(name, kind, typestore=store) for name, kind in kinds.items()}

        def write(name, time, message):
            kind = kinds[name]
            bag.write(topics[name], int(time * 1e9), store.serialize_cdr(message, kind))

        begin, aim, command = 1_760_000_000.0, somewhere(1, rng), np.zeros(2)
        lost_until = carried_until = 0.0
        for tick in range(int(minutes * 60 / TICK)):
            now = tick * TICK
            if now >= carried_until and now % DRIVE < TICK and tick > 0:  # the end of a drive
                carried_until = now + 3.0
                rover.position, rover.yaw = somewhere(rng.choice([-1, 1]), rng), rng.uniform(-np.pi, np.pi)
                rover.moving, aim = np.zeros(2), somewhere(rng.choice([-1, 1]), rng)
            driving = now >= carried_until
            if np.linalg.norm(rover.position - aim) < 0.4:
                aim = somewhere(WALL - aim[0], rng)
            if tick % 10 == 0:
                command = operator(rover, aim, rng) if driving else np.zeros(2)
                lost_until = now + 2.0 if rng.random() < 0.0004 else lost_until
            if tick % 20 == 0:
                write("/enable", begin + now, store.types["std_msgs/msg/Bool"](bool(driving)))
            if tick * 30 // 100 != (tick - 1) * 30 // 100:
                write("/cmd_vel", begin + (tick * 30 // 100) / 30, _twist(store, command))
            if now >= lost_until:
                late = begin + now + rng.uniform(0.002, 0.01)
                write("/odom", late, _odometry(store, rover, begin + now - BEHIND))
            rover.tick(command)


def _twist(store, command):
    vector = store.types["geometry_msgs/msg/Vector3"]
    zero = [0.0, 0.0]
    return store.types["geometry_msgs/msg/Twist"](vector(float(command[0]), *zero), vector(*zero, float(command[1])))


def _odometry(store, rover, stamp):
    """The pose, with the heading as a quaternion, stamped by the clock of the rover."""
    types = {name.rpartition("/")[2]: kind for name, kind in store.types.items()}
    nanoseconds = int(stamp * 1e9)
    header = types["Header"](types["Time"](*divmod(nanoseconds, 10**9)), "odom")
    half = rover.yaw / 2
    turned = types["Quaternion"](0.0, 0.0, float(np.sin(half)), float(np.cos(half)))
    pose = types["Pose"](types["Point"](float(rover.position[0]), float(rover.position[1]), 0.0), turned)
    none = np.zeros(36)
    twist = types["TwistWithCovariance"](_twist(store, rover.moving), none)
    return types["Odometry"](header, "base_link", types["PoseWithCovariance"](pose, none), twist)


if __name__ == "__main__":
    record(Path(sys.argv[1]), *map(float, sys.argv[2:3]))
