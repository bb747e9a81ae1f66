"""An agent as a ROS 2 node: observations and goals in, actions out, at a fixed rate, the stop when in doubt.

python examples/ros2_node.py AGENT --stop 0 0 --rate 20

    observation  std_msgs/Float64MultiArray   the columns of the data, in their order and units
    goal         std_msgs/Float64MultiArray   a whole observation; NaN where any value will do; empty: no goal
    action       std_msgs/Float64MultiArray   within [-1, 1], or with --units robot as in the logs

It was tested with a stand-in of the three calls it makes of a node, not with ROS: what turns your topics (odometry,
joint states, a goal pose) into an observation, and an action into a command, is yours.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

import iel

PATIENCE = 5.0
"""Ticks without a new observation after which the robot is stopped."""


class GoToGoal:
    """The node's three callbacks. `node` offers create_subscription, create_publisher and create_timer."""

    def __init__(self, node: Any, message: type, agent: iel.Agent, stop: list[float], rate: float, units: str = "unit"):
        self.message, self.agent, self.rate, self.units = message, agent, rate, units
        self.watchdog = iel.Watchdog(stop=tuple(stop), max_age=PATIENCE / rate, repeats=None)
        self.episode: iel.agent.Episode | None = None
        self.row, self.stamp, self.fresh = np.zeros(0), 0.0, False
        self.action, self.reason = list(stop), "no goal"
        self.actions = node.create_publisher(message, "action", 1)
        node.create_subscription(message, "observation", self.observe, 1)
        node.create_subscription(message, "goal", self.head_for, 1)
        node.create_timer(1.0 / rate, self.tick)

    def observe(self, message: Any) -> None:
        """The newest observation counts; older ones are forgotten."""
        self.row, self.stamp, self.fresh = np.array(message.data, np.float64), time.time(), True

    def head_for(self, message: Any) -> None:
        """Another goal, or none; one that cannot be used stops the robot."""
        goal = np.array(message.data, np.float64)
        self.episode, self.reason = None, "no goal"
        if goal.size:
            wanted = {column: float(goal[column]) for column in np.flatnonzero(np.isfinite(goal))}
            try:
                whole = len(wanted) == goal.size
                self.episode = self.agent.start(goal if whole else wanted, rate=self.rate, watchdog=self.watchdog)
            except iel.errors.IELError as problem:
                self.reason = f"goal: {problem}"

    def tick(self) -> None:
        """One action. Between two observations the last one is repeated, but not for long."""
        if self.episode is not None and self.fresh:
            self.action = self.episode.act(self.row, self.units, stamp=self.stamp).tolist()
            self.reason, self.fresh = self.episode.stopped, False
        elif self.episode is not None and time.time() - self.stamp > PATIENCE / self.rate:
            self.action, self.reason = list(self.watchdog.stop), "stale: no new observation"
        elif self.episode is None:
            self.action = list(self.watchdog.stop)
        self.actions.publish(self.message(data=self.action))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent")
    parser.add_argument("--stop", type=float, nargs="+", required=True, help="the stop action, in --units")
    parser.add_argument("--rate", type=float, required=True, help="actions per second: that of the logs")
    parser.add_argument("--units", choices=("unit", "robot"), default="unit")
    given = parser.parse_args(arguments)
    import rclpy
    from std_msgs.msg import Float64MultiArray

    rclpy.init()
    node = rclpy.create_node("iel")
    try:
        GoToGoal(node, Float64MultiArray, iel.load_agent(given.agent), given.stop, given.rate, given.units)
        rclpy.spin(node)
    finally:
        node.destroy_node()
        rclpy.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
