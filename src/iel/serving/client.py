"""A small client: Python's own HTTP, one kept connection, numpy in and out.

with Client("http://127.0.0.1:8420") as robot:
    action = robot.act(observation, goal)

with Loop("http://127.0.0.1:8420", goal) as loop:      # a WebSocket; needs the package `websockets`
    action = loop.act(observation)
"""

from __future__ import annotations

import http.client
import json
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.errors import ConfigError, RunError

Floats = NDArray[np.float32]
Answer = dict[str, Any]
"""A JSON object."""
Steps = float | None | list[float | None]


class ServerError(RunError):
    """What the server said, and its status."""

    def __init__(self, sentence: str, status: int = 0):
        super().__init__(sentence)
        self.status = status


class Client(ExitStack):
    """Questions to a policy server. One connection, for one thread."""

    def __init__(self, url: str = "http://127.0.0.1:8420", *, token: str | None = None, timeout: float = 10.0):
        super().__init__()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"The server's address is '{url[:80]}'; give one such as http://127.0.0.1:8420.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self.callback(self._connection.close)
        self._headers = {"Content-Type": "application/json", **authorisation(token)}

    def act(self, observation: ArrayLike, goal: ArrayLike, *, planner: str | None = None) -> Floats:
        """The action, or with a table of observations the actions; one goal may stand for all."""
        answer = self._ask("/v1/act", observation, goal, planner)
        return np.array(answer.get("action", answer.get("actions")), np.float32)

    def plan(self, observation: ArrayLike, goal: ArrayLike, *, planner: str | None = None) -> Answer:
        """`waypoints`, `steps` of each part and `predicted_steps`; of several ways a list as `plans`."""
        return self._ask("/v1/plan", observation, goal, planner)

    def steps(self, observation: ArrayLike, goal: ArrayLike, *, planner: str | None = None) -> Steps:
        """Predicted steps: a number, or one per row; None where no way is known."""
        return self._ask("/v1/steps", observation, goal, planner)["steps"]

    def model(self) -> Answer:
        """Sizes, planners and limits of what is served."""
        return self._request("GET", "/v1/model")

    def health(self) -> bool:
        """Whether the server answers."""
        try:
            return self._request("GET", "/health")["status"] == "ok"
        except ServerError:
            return False

    def _ask(self, path: str, observation: ArrayLike, goal: ArrayLike, planner: str | None) -> Answer:
        body = {**_named("observation", observation), **_named("goal", goal)}
        if planner is not None:
            body["planner"] = planner
        return self._request("POST", path, json.dumps(body))

    def _request(self, method: str, path: str, body: str | None = None) -> Answer:
        try:
            self._connection.request(method, path, body, self._headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next question opens it again
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
        goal: ArrayLike,
        *,
        planner: str | None = None,
        acting: str = "mean",
        seed: int = 0,
        token: str | None = None,
        timeout: float = 10.0,
    ):
        try:
            from websockets.sync.client import connect
        except ImportError:
            raise ConfigError("A control loop needs websockets; install the extra: pip install 'iel[serve]'.") from None
        super().__init__()
        self._timeout, self._wish = timeout, {"planner": planner, "acting": acting, "seed": seed}
        address, headers = url.replace("http", "ws", 1).rstrip("/") + "/v1/control", authorisation(token)
        try:
            opened = connect(address, additional_headers=headers, open_timeout=timeout, proxy=None, compression=None)
        except Exception as error:
            raise ServerError(f"{address} cannot be opened ({error}); is `iel serve` running?") from error
        self._socket = self.enter_context(opened)
        self.head_for(goal)

    def head_for(self, goal: ArrayLike) -> None:
        """Another goal from now on."""
        self._ask({"goal": np.asarray(goal).tolist(), **self._wish})

    def act(self, observation: ArrayLike) -> Floats:
        """The action from here."""
        return np.array(self._ask({"observation": np.asarray(observation).tolist()})["action"], np.float32)

    def act_and_steps(self, observation: ArrayLike) -> tuple[Floats, float | None]:
        """The action, and the predicted steps to the goal."""
        answer = self._ask({"observation": np.asarray(observation).tolist(), "steps": True})
        return np.array(answer["action"], np.float32), answer["steps"]

    def avoid(self, states: ArrayLike, radius: float) -> int:
        """Keep away from these states; how many nodes are switched off by that."""
        return self._ask({"avoid": np.asarray(states).tolist(), "radius": radius})["nodes_off"]

    def _ask(self, message: Answer) -> Answer:
        try:
            self._socket.send(json.dumps(message))
            answer = json.loads(self._socket.recv(timeout=self._timeout))
        except Exception as error:
            raise ServerError(f"The control loop broke ({error}); open it again.") from error
        if "error" in answer:
            raise ServerError(answer["error"])
        return answer


def authorisation(token: str | None) -> dict[str, str]:
    """The header that shows a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _named(name: str, rows: ArrayLike) -> Answer:
    table = np.asarray(rows, np.float64)
    return {name if table.ndim == 1 else f"{name}s": table.tolist()}
