"""Requests drawn from the server's own OpenAPI document, right and wrong: each gets an answer or a sentence.

IEL_FAULTS=1 python -m pytest tests/serving/test_schema_fuzz.py          # 100,000 of them; IEL_REQUESTS=20000 for fewer
"""

import http.client
import json
import os
import urllib.request
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from iel.data import Trajectories
from iel.model.support import support_of
from iel.serving.guard import Limits, memory
from iel.signals import Signals
from tests.serving.conftest import Running, served, walk

SEED = 0
WRONG = 0.03
"""How often a part of a request is not what the schema says."""
JUNK = [
    None,
    True,
    -1,
    1e308,
    -1e-300,
    2**63,
    "",
    "\u0000",
    "Ω" * 50,
    [],
    {},
    [[]],
    {"0": None},
    "NaN",
    [1, "2"],
    10**400,
]


class Draw:
    """Values of a JSON schema."""

    def __init__(self, spec: dict, seed: int):
        self.paths = {path: each["post"] for path, each in spec["paths"].items() if "post" in each}
        self.schemas = spec["components"]["schemas"]
        self.random = np.random.default_rng(seed)

    def request(self) -> tuple[str, bytes]:
        """Path and request body."""
        path = str(self.random.choice(sorted(self.paths)))
        schema = self.paths[path]["requestBody"]["content"]["application/json"]["schema"]
        body = json.dumps(self.value(schema)).encode()
        if self.random.random() < WRONG:
            cut = int(self.random.integers(0, len(body) + 1))
            body = body[:cut] + bytes(self.random.integers(0, 256, 3).tolist()) + body[cut:]
        return path, body

    def value(self, schema: dict):
        random = self.random
        if random.random() < WRONG / 3:
            return JUNK[random.integers(len(JUNK))]
        if "$ref" in schema:
            return self.value(self.schemas[schema["$ref"].split("/")[-1]])
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                some = [each for each in schema[choice] if each.get("type") != "null" or random.random() < WRONG]
                return self.value(some[random.integers(len(some))])
        if "enum" in schema:
            return schema["enum"][random.integers(len(schema["enum"]))]
        match schema.get("type"):
            case "object":
                return self.object(schema)
            case "array":
                size = 2 if random.random() < 0.9 else int(random.integers(0, 5))
                return [self.value(schema["items"]) for _ in range(size)]
            case "number" | "integer":
                return float(random.normal(0, 10.0 ** random.integers(0, 2)))
            case "boolean":
                return bool(random.random() < 0.5)
            case "string":
                return str(random.choice([*"0?", *4 * ["direct", "rec-mid", "sym-graph", "asym-graph"]]))
            case _:
                return None

    def object(self, schema: dict) -> dict:
        """Half of the fields; mostly one observation and one goal where the schema has them."""
        fields = schema.get("properties")
        if fields is None:
            some = self.random.choice(["0", "1", "x", "y", "7"], int(self.random.integers(1, 3)), replace=False)
            return {str(name): self.value(schema["additionalProperties"]) for name in some}
        keep = {name for name in fields if self.random.random() < 0.5}
        if "goal" in fields and self.random.random() > 3 * WRONG:
            several = "s" if self.random.random() < 0.3 else ""
            keep = (keep - {"goal", "goals", "observation", "observations"}) | {f"goal{several}", "observation"}
        found = {name: self.value(fields[name]) for name in fields if name in keep}
        return found | ({"unexpected": 1} if self.random.random() < WRONG / 3 else {})


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def fuzzed(requests: int, seed: int) -> tuple[Counter, list[float]]:
    """Statuses of this number of requests, and the process' memory after each tenth of them."""
    source = served()
    observations, offsets = walk()
    source.model.signals = Signals(observations=("x", "y"), action_low=(0.0, -1.6), action_high=(0.6, 1.6))
    source.model.support = support_of(
        Trajectories(observations, np.zeros((len(observations), 1)), offsets, checked=True)
    )
    statuses, held = Counter(), []
    with Running(replace(source), limits=Limits(rate=1e9)) as server:
        draw = Draw(json.loads(urllib.request.urlopen(f"{server.url}/openapi.json").read()), seed)
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        for number in range(requests):
            path, body = draw.request()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read(), parse_constant=refuse_constant)
            statuses[response.status] += 1
            assert 200 <= response.status < 500, (path, body[:300])
            if response.status >= 400:
                assert answer["error"].endswith((".", "?")) and "\n" not in answer["error"], (answer, body[:300])
            if number % max(1, requests // 10) == 0:
                held.append(memory())
    return statuses, held


def test_some_requests_of_the_schema():
    statuses, _ = fuzzed(400, SEED)
    assert statuses[200] > 100 and statuses[422] > 50


@pytest.mark.faults
def test_100_000_requests_of_the_schema():
    requests = int(os.environ.get("IEL_REQUESTS", "100000"))
    statuses, held = fuzzed(requests, SEED + 1)
    print(f"{requests} requests: {dict(statuses)}, memory {[round(each / 1e6) for each in held]} MB")
    assert statuses[200] > 0.2 * requests and statuses[422] > 0.1 * requests
    assert max(held[3:]) < 1.1 * held[2] + 20e6, "nothing grows with the number of requests"
