"""Comparisons: a grid of environments, methods, planners and seeds, run cell by cell, and what came out of it.

grid.py        reads and checks a grid file
cells.py       trains and evaluates one cell, in a process of its own
execute.py     runs all cells, several at a time, and goes on where it was stopped; progress.py shows it
results.py     collects what is finished, with its statistics
tables.py      Markdown in the paper's layout, published numbers beside ours
page.py        the self-contained HTML page
published.py   numbers of others, published.toml, with sources and protocol classes
grids/         the grids that come with the package
"""
