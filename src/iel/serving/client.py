"""A small client: Python's own HTTP, one persistent connection, numpy in and out.

with Client("http://127.0.0.1:8420") as robot:
    action = robot.act(observation, goal)

with Loop("http://127.0.0.1:8420", goal) as loop:      # a WebSocket; needs the package `websockets`
    action = loop.act(observation)
"""

import http.client
import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.errors import ConfigError, RunError, install

Floats = NDArray[np.float32]
Answer = dict[str, Any]
"""A JSON object."""
Goal = Mapping[int | str, Any] | ArrayLike
"""A full observation, or what some columns should be, by number or name: {"x": 8.5}."""
Steps = float | None | list[float | None]


class ServerError(RunError):
    """A refusal of the server: its sentence and its status (0 where the server did not respond)."""

    def __init__(self, sentence: str, status: int = 0):
        super().__init__(sentence)
        self.status = status


class Client(ExitStack):
    """A connection to a policy server, for one thread."""

    def __init__(self, url: str = "http://127.0.0.1:8420", *, token: str | None = None, timeout: float = 10.0):
        super().__init__()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"The server's address is '{url[:80]}'; give one such as http://127.0.0.1:8420.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self.callback(self._connection.close)
        self._headers = {"Content-Type": "application/json", **authorisation(token)}
        self.warnings: list[str] = []
        """Warnings in the last answer: an observation or a goal outside of the training data."""

    def __repr__(self) -> str:
        return f"Client({self._connection.host}:{self._connection.port})"

    def act(self, observation: ArrayLike, goal: Goal, *, planner: str | None = None, units: str = "unit") -> Floats:
        """The action, or with a table of observations the actions; one goal may stand for all."""
        answer = self._answer("/v1/act", observation, goal, planner, units=units)
        return np.array(answer.get("action", answer.get("actions")), np.float32)

    def plan(self, observation: ArrayLike, goal: Goal, *, planner: str | None = None) -> Answer:
        """`waypoints`, `steps` of each part and `predicted_steps`; with several rows a list as `plans`."""
        return self._answer("/v1/plan", observation, goal, planner)

    def steps(self, observation: ArrayLike, goal: Goal, *, planner: str | None = None) -> Steps:
        """Predicted steps: a number, or one per row; None where no route is known."""
        return self._answer("/v1/steps", observation, goal, planner)["steps"]

    def model(self) -> Answer:
        """Sizes, planners and limits of what is served."""
        return self._request("GET", "/v1/model")

    def health(self) -> bool:
        """Whether the server answers."""
        try:
            return self._request("GET", "/health")["status"] == "ok"
        except ServerError:
            return False

    def _answer(self, path: str, observation: ArrayLike, goal: Goal, planner: str | None, **more: str) -> Answer:
        wanted = {"goal": _goal(goal)} if isinstance(goal, Mapping) else _named("goal", goal)
        body = {**_named("observation", observation), **wanted, **more}
        if planner is not None:
            body["planner"] = planner
        answer = self._request("POST", path, json.dumps(body))
        self.warnings = answer.get("warnings", [])
        return answer

    def _request(self, method: str, path: str, body: str | None = None) -> Answer:
        try:
            self._connection.request(method, path, body, self._headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next request opens it again
            raise ServerError(f"The server does not answer ({error}); is `iel serve` running?") from error
        try:
            answer = json.loads(content)
        except ValueError:
            raise ServerError(f"The server answered {response.status} without JSON; is it iel's?") from None
        if response.status != 200:
            raise ServerError(str(answer.get("error", answer)), response.status)
        return answer


class Loop(ExitStack):
    """A control loop over a WebSocket: it remembers its goal, and pays for the connection once."""

    def __init__(
        self,
        url: str,
        goal: Goal,
        *,
        planner: str | None = None,
        acting: str = "mean",
        seed: int = 0,
        watchdog: Mapping[str, Any] | None = None,
        token: str | None = None,
        timeout: float = 10.0,
    ):
        """`watchdog` holds settings of `iel.Watchdog`, at least the action that stops: {"stop": [0, 0]}."""
        try:
            from websockets.sync.client import connect
        except ImportError:
            raise ConfigError(f"A control loop needs websockets; {install('serve')}.") from None
        super().__init__()
        self._timeout = timeout
        self._settings = {"planner": planner, "acting": acting, "seed": seed, "watchdog": watchdog and dict(watchdog)}
        self.stopped: str | None = None
        """Why the watchdog answered with the action that stops; None if the last action is the policy's."""
        self.warnings: list[str] = []
        address, headers = url.replace("http", "ws", 1).rstrip("/") + "/v1/control", authorisation(token)
        try:
            opened = connect(address, additional_headers=headers, open_timeout=timeout, proxy=None, compression=None)
        except Exception as error:
            raise ServerError(f"{address} cannot be opened ({error}); is `iel serve` running?") from error
        self._socket = self.enter_context(opened)
        self.head_for(goal)

    def head_for(self, goal: Goal) -> None:
        """Head for another goal from now on."""
        self._answer({"goal": _goal(goal), **self._settings})

    def act(self, observation: ArrayLike, units: str = "unit", stamp: float | None = None) -> Floats:
        """The action from here, within [-1, 1] or in the units of the "robot"; `stamp` is for the watchdog."""
        message = {"observation": np.asarray(observation).tolist(), "units": units, "stamp": stamp}
        return np.array(self._answer(message)["action"], np.float32)

    def act_and_steps(self, observation: ArrayLike) -> tuple[Floats, float | None]:
        """The action, and the predicted steps to the goal; None where no route is known, or the watchdog stops."""
        answer = self._answer({"observation": np.asarray(observation).tolist(), "steps": True})
        return np.array(answer["action"], np.float32), answer.get("steps")

    def avoid(self, states: ArrayLike, radius: float) -> int:
        """Keep away from these states; returns how many nodes of the graph are switched off."""
        return self._answer({"avoid": np.asarray(states).tolist(), "radius": radius})["nodes_off"]

    def _answer(self, message: Answer) -> Answer:
        try:
            self._socket.send(json.dumps(message))
            answer = json.loads(self._socket.recv(timeout=self._timeout))
        except Exception as error:
            raise ServerError(f"The control loop broke ({error}); open it again.") from error
        if "error" in answer:
            raise ServerError(answer["error"])
        self.stopped, self.warnings = answer.get("stopped"), answer.get("warnings", [])
        return answer


def authorisation(token: str | None) -> dict[str, str]:
    """The header with a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _goal(goal: Goal) -> Answer | list[float]:
    """A goal as JSON."""
    if isinstance(goal, Mapping):
        return {str(column): np.asarray(value).tolist() for column, value in goal.items()}
    return np.asarray(goal, np.float64).tolist()


def _named(name: str, rows: ArrayLike) -> Answer:
    table = np.asarray(rows, np.float64)
    return {name if table.ndim == 1 else f"{name}s": table.tolist()}
