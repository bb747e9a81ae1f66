"""The card of an agent: card.json for programs, README.md for people and for the Hugging Face Hub.

Both say where it comes from (data, method, settings), how to call it, what was measured of it, and what it cannot do.
"""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import iel
from iel.files import write_json, write_text
from iel.loader import read_json
from iel.model import Model
from iel.model.atlas import Atlas
from iel.signals import Signals

Card = dict[str, Any]
CARD_FORMAT = 2
CARD, PAGE = "card.json", "README.md"
ORIGIN = ("env", "algo", "seed", "status", "step", "settings", "data", "licence", "evaluations")
"""What a card says that its model does not."""
HUB_LICENCES = (
    "mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "mpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "cc0-1.0",
    "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "unlicense",
)  # fmt: skip
"""Licences by the names that the Hub has for them."""


def card_of(model: Model, atlas: Atlas | None, origin: Mapping[str, Any], **more: Any) -> Card:
    """The content of card.json; `origin` is what is known of a run's config.json, `more` what the directory holds."""
    data, metric = origin.get("data") or {}, model.metric
    return {
        "format": CARD_FORMAT,
        **{name: origin.get(name) for name in ORIGIN},
        "algo": model.algo,
        "data": {name: fact for name, fact in data.items() if name != "file"},
        "versions": versions(),
        "interface": {
            "observation": {"size": model.observation_size, "type": "float32"},
            "action": {"size": model.action_size, "type": "float32", "low": -1.0, "high": 1.0},
            "command": {"size": model.command_size, "conditioning": model.conditioning.kind},
            "embedding": {"size": model.dimension},
            "metric": metric and {"kind": type(metric).__name__, "discount": metric.discount},
            **msgspec.to_builtins({"signals": model.signals}),
        },
        "planner": atlas and {"nodes": len(atlas), "unobserved_cost": atlas.penalty},
        **more,
    }


def write_card(directory: Path, card: Card) -> None:
    """Write both files."""
    write_json(directory / CARD, card)
    write_text(directory / PAGE, page(card))


def read_origin(directory: Path) -> dict[str, Any]:
    """What the card of a directory says that its model does not; nothing where there is none."""
    if not (directory / CARD).exists():
        return {}
    card = read_json(directory / CARD)
    return {name: card[name] for name in ORIGIN if card.get(name) is not None}


def versions() -> dict[str, str]:
    """Versions of everything that wrote the files."""
    found = {"iel": iel.__version__, "python": platform.python_version()}
    for package in ("jax", "numpy", "onnx", "onnxruntime"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


# ------------------------------------------------------------------------------------------------------------ the page


def page(card: Card) -> str:
    """README.md: the Hub's metadata between two lines of dashes, then the page."""
    head = "\n".join(_yaml(_metadata(card)))
    parts = (_summary, _use, _interface, _origin, _evaluation, _limits, _licence)
    return f"---\n{head}\n---\n\n" + "\n\n".join("\n".join(part(card)) for part in parts) + "\n"


def _metadata(card: Card) -> dict[str, Any]:
    """What the Hub reads: https://huggingface.co/docs/hub/model-cards."""
    licence = card["licence"]
    known = licence is not None and licence.lower() in HUB_LICENCES
    stated = {"license": licence.lower()} if known else {"license": "other", "license_name": licence or "not stated"}
    facts = {
        "library_name": "iel",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "offline-rl", "goal-conditioned", "planning", card["algo"]],
        **stated,
    }
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "goal reaching"},
            "dataset": {"type": found["env"], "name": found["env"]},
            "metrics": [
                {
                    "type": "success_rate",
                    "value": round(found["success_rate"], 4),
                    "name": f"success rate, {found['planner']}",
                }
            ],
        }
        for found in card["evaluations"] or ()
    ]
    return facts | ({"model-index": [{"name": _title(card), "results": results}]} if results else {})


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Lines of YAML: dictionaries and lists as blocks, everything else as JSON, which is YAML too."""
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for name, item in items:
        start = f"{indent}- " if name is None else f"{indent}{name}:"
        if isinstance(item, dict | list):
            lines = list(_yaml(item, indent + "  "))
            if name is None:
                yield start + lines[0].lstrip()
                yield from lines[1:]
            else:
                yield start
                yield from lines
        else:
            yield start + ("" if name is None else " ") + json.dumps(item)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def _title(card: Card) -> str:
    return f"{card['algo']} trained on {card['env'] or 'logs'}"


def _summary(card: Card) -> Iterator[str]:
    plans = f"plans over {card['planner']['nodes']} states of its data" if card["planner"] else "heads straight for it"
    yield from (f"# {_title(card)}", "", f"A policy that is given a goal at run time, and {plans}.")
    if card["status"] not in (None, "finished"):
        yield f"Its training is not finished ({card['status']}, step {card['step']})."


def _use(card: Card) -> Iterator[str]:
    units = ', units="robot"' if card["interface"]["signals"].get("action_low") else ""
    yield f"""## Use

Python without JAX (`iel`, numpy, scipy, safetensors, msgspec):

```python
import iel

agent = iel.load_agent(".")  # this directory, or its zip archive
episode = agent.start(goal)
action = episode.act(observation{units})
```
"""
    if onnx := card.get("onnx"):
        yield f"ONNX (opset {onnx['opset']}, float32, the first axis is the batch):\n"
        yield from (*_table(("file", "inputs -> outputs"), list(onnx["files"].items())), "")
        if found := card["agreement"]["onnx"]:
            rows, difference = card["agreement"]["rows"], found["action"]
            yield f"Largest difference of ONNX from numpy on {rows} inputs: {difference:.1e}.\n"
    yield "`manifest.json` has the sha256 of every file."


def _interface(card: Card) -> Iterator[str]:
    size, actions = (card["interface"][kind]["size"] for kind in ("observation", "action"))
    signals = msgspec.convert(card["interface"]["signals"], Signals)
    yield f"""## Observations and actions

Observations and goals are {size} float32 numbers in the order and units of the data; a goal may name some of the \
columns. Actions are {actions} float32 numbers within [-1, 1]."""
    if signals.observations:
        columns = [(i, name, signals.units.get(name, "")) for i, name in enumerate(signals.observations)]
        yield from ("", *_table(("observation", "column", "unit"), columns))
    if signals.actions or signals.action_low:
        unknown = ("",) * actions
        low, high = signals.action_low or unknown, signals.action_high or unknown
        named = enumerate(signals.actions or unknown)
        rows = [(i, name, signals.units.get(name, ""), low[i], high[i]) for i, name in named]
        yield from ("", *_table(("action", "column", "unit", "-1 means", "1 means"), rows))
    if signals.rate is not None:
        yield f"\nIt was recorded, and is to be driven, at {signals.rate:g} Hz."


def _origin(card: Card) -> Iterator[str]:
    data, seed = card["data"], card["seed"]
    episodes, transitions = data.get("episodes", "?"), data.get("transitions", "?")
    yield "## Data and method\n"
    yield (
        "Data: not recorded."
        if not data
        else (
            f"Data: {data.get('name', 'unknown')}, {episodes} episodes, {transitions} transitions, "
            f"fingerprint `{data.get('fingerprint', 'unknown')}`."
        )
    )
    yield f"Method: `{card['algo']}`" + ("." if seed is None else f", training seed {seed}.")
    yield "Written with " + ", ".join(f"{name} {number}" for name, number in card["versions"].items()) + "."
    if card["settings"]:
        settings = json.dumps(card["settings"], indent=2)
        yield f"\n<details><summary>Settings</summary>\n\n```json\n{settings}\n```\n\n</details>"


def _evaluation(card: Card) -> Iterator[str]:
    yield "## Evaluation\n"
    if not card["evaluations"]:
        yield "It has not been evaluated."
        return
    rows = [
        (
            found["env"],
            found["planner"],
            f"{found['success_rate']:.1%}",
            "{:.1%} to {:.1%}".format(*found["interval"]),
            f"{found['tasks']} x {found['episodes_per_task']}",
            found["max_steps"],
        )
        for found in card["evaluations"]
    ]
    yield from _table(("environment", "planner", "success", "95 % interval", "tasks x episodes", "steps at most"), rows)


def _limits(card: Card) -> Iterator[str]:
    yield """## Limits

- It knows what its data shows: goals and observations far outside of it are reported, not solved \
(`iel.load_agent(path, outside="refuse")` refuses them).
- Nothing in it knows what is dangerous. Between it and a machine belong limits, a watchdog and a stop."""
    if card["interface"]["metric"]:
        yield "- Predicted steps are those of the behaviour in the data, as far as they were learned."
    if not card["planner"]:
        yield "- It holds no states to plan over, so it heads straight for a goal, through walls if need be."
    if card["evaluations"]:
        yield "- Success rates are of this one training seed, in these environments, with these protocols."


def _licence(card: Card) -> Iterator[str]:
    stated = card["licence"]
    yield "## Licence\n"
    yield "Not stated: contact its author." if stated is None else f"{stated}."
