"""Run a notebook and store what its cells print and draw, without Jupyter.

python -m scripts.run_notebook examples/own_robot.ipynb
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def run_cell(source: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    """Execute a cell in `space`; its outputs as notebooks store them."""
    tree, printed, outputs = ast.parse(source), io.StringIO(), []
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    pictures: list[bytes] = []

    def show() -> None:
        for number in plt.get_fignums():
            content = io.BytesIO()
            plt.figure(number).savefig(content, format="png", dpi=80, bbox_inches="tight")
            pictures.append(content.getvalue())
        plt.close("all")

    plt.show = show  # type: ignore[assignment]
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), space)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), space)
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        text = {"text/plain": repr(value).splitlines(True)}
        outputs.append({"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": text})
    for picture in pictures:
        data = {"image/png": base64.b64encode(picture).decode()}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def main(path: str, folder: str | None = None) -> None:
    """Run in the notebook's folder (its files may lie in another one) and write the outputs into it."""
    file = Path(path).resolve()
    notebook, space = json.loads(file.read_text()), {}
    sys.path.insert(0, str(file.parent))
    os.chdir(folder or file.parent)
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        cell["outputs"] = run_cell("".join(cell["source"]), space)
        cell["execution_count"] = number + 1
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number + 1
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
