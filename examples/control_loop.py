"""A control loop against a policy server: the robot here, the policy there.

iel serve runs/demo-001                                       # in one terminal
python examples/control_loop.py pointmaze-large-navigate-v0   # in another
"""

import sys

import numpy as np

import iel
from iel.serving.client import Client, Loop


def main(env_name: str, url: str = "http://127.0.0.1:8420", task: int = 1) -> tuple[bool, int]:
    with Client(url) as client:
        served = client.model()
    print(f"{served['algo']} '{served['name']}': {served['observation_size']} numbers in, {served['action_size']} out")

    env = iel.make_env(env_name)  # your robot: anything that can be observed and commanded
    observation, info = env.reset(seed=0, options={"task_id": task})
    with Loop(url, info["goal"]) as loop:
        for step in range(1, env.horizon + 1):
            action, steps_left = loop.act_and_steps(observation)
            observation, _, _, _, info = env.step(action)
            if step % 50 == 0 and steps_left is not None:
                print(f"step {step}: {steps_left:.0f} predicted steps to go, at {np.round(observation[:2], 1)}")
            if info["success"]:
                print(f"arrived after {step} steps")
                return True, step
    print(f"not there after {env.horizon} steps")
    return False, env.horizon


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("give the environment's name, e.g. python examples/control_loop.py pointmaze-large-navigate-v0")
    main(*sys.argv[1:])
