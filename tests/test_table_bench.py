"""The totals of a table follow from its cells: by hand for a small one."""

from benchmarks.table import Options, totals


def test_totals_are_those_computed_by_hand():
    rows = [
        {"cells": 8, "core_hours_a_cell": 10.0, "core_hours": 80},
        {"cells": 8, "core_hours_a_cell": 4.0, "core_hours": 32},
    ]
    few = totals(rows, Options(nodes=2, cores=4, price=0.5))  # 16 cells, 8 cores: two rounds of one core each
    assert few == {"cells": 16, "core_hours": 112, "cores_a_cell": 1, "hours_at_best": 20.0,
                   "hours_on_one_machine_of_two_cores": 56, "price": 56}  # fmt: skip
    many = totals(rows, Options(nodes=100, cores=4))  # all at once; a cell cannot have more than its machine
    assert (many["cores_a_cell"], many["hours_at_best"]) == (4, 2.5)
