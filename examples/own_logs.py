"""Train on logs of your own, without any simulator: a robot that was driven around a square room.

python examples/own_logs.py
"""

import numpy as np

import iel


def drive_around(rng: np.random.Generator, steps: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """One logged episode: T + 1 positions and the T velocity commands that led from one to the next."""
    position, heading = rng.uniform(0, 10, 2), rng.uniform(0, 2 * np.pi)
    positions, commands = [position], []
    for _ in range(steps):
        heading += rng.normal(0, 0.3)
        command = np.array([np.cos(heading), np.sin(heading)])
        position = np.clip(position + 0.3 * command, 0, 10)
        positions.append(position)
        commands.append(command)
    return np.array(positions), np.array(commands)


def main(steps: int = 6_000) -> float:
    rng = np.random.default_rng(0)
    logs = iel.Trajectories.from_episodes([drive_around(rng) for _ in range(100)], name="room")
    run = iel.train(logs, iel.IEL.preset("smoke", steps=steps), seeds=[0])

    planner = iel.AsymGraph(run.model, logs, nodes=256)
    position, goal = np.array([1.0, 1.0]), np.array([8.0, 9.0])
    planner.prepare(goal)
    print(f"predicted: {planner.predicted_steps(position):.0f} steps")
    step = 0
    while step < 200 and np.linalg.norm(goal - position) >= 0.5:
        position = np.clip(position + 0.3 * planner.act(position), 0, 10)
        step += 1
    distance = float(np.linalg.norm(goal - position))
    print(f"after {step} steps: {distance:.2f} from the goal")
    return distance


if __name__ == "__main__":
    main()
