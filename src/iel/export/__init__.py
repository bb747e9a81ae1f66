"""A trained run as files for other machines: weights, ONNX graphs, states to plan over, a card and a manifest."""

from iel.export.directory import check_export, export_run, file_sizes
from iel.export.graphs import build_graphs

__all__ = ["build_graphs", "check_export", "export_run", "file_sizes"]
