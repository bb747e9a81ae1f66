"""The head of a grid that runs in seconds: one maze, two seeds, two tasks. Its methods are for each test to name."""

TINY = """
title = "tiny"
published = "ogbench"
environments = ["pointmaze-medium-navigate-v0"]
seeds = [0, 1]
preset = "smoke"

[protocol]
episodes = 1
seed = 1000
tasks = [1, 2]
max_steps = 60

[data]
episodes = 60
"""
