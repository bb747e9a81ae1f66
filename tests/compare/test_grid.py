"""Grids: those of the package are sound, and a bad one is refused with what is wrong with it."""

import pytest

from iel.cli import main
from iel.compare.grid import DataChoice, builtin_grids, check_grid, read_grid
from iel.compare.published import published_numbers
from iel.errors import ConfigError
from iel.methods import METHODS, config_from_dict

MAZE = "pointmaze-medium-navigate-v0"
GOOD = {"environments": [MAZE], "seeds": [0, 1], "methods": [{"algo": "iel", "planners": ["direct", "sym-graph"]}]}


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", builtin_grids())
def test_packaged_grids_are_sound_at_every_scale(name, scale):
    grid = read_grid(name, scale)
    assert grid.cells
    assert grid.protocol.seed in (1000, 3000, 4000, 5000, 6000)  # settings were chosen with others
    body = scale == "laptop" and name in ("ablation", "antmaze", "kitchen")
    for cell in grid.cells:
        config = METHODS[cell.algo]
        arm = name == "kitchen" and "laptop-arm" in config.presets
        preset = ("laptop-arm" if arm else "laptop-robot") if body else scale
        assert cell.settings["hidden"] == list(config.preset(preset).hidden)
    assert len({cell.directory("x") for cell in grid.cells}) == len(grid.cells)


def test_the_point_mazes_at_laptop_scale():
    grid = read_grid("pointmaze", "laptop")
    assert grid.environments == tuple(
        f"pointmaze-{maze}-v0" for maze in ("large-navigate", "giant-navigate", "giant-stitch", "teleport-navigate")
    )
    assert grid.seeds == (0, 1, 2) and len({cell.algo for cell in grid.cells}) == 6
    assert grid.variants["IEL"] == grid.variants["HILP"] == ("direct", "rec-mid", "sym-graph", "asym-graph")
    assert grid.variants["IEL waypoint"] == grid.variants["HILP waypoint"] == ("sym-graph", "asym-graph")
    phased = [cell.settings["training"] for cell in grid.cells if cell.method == "HILP waypoint"]
    assert set(phased) == {"phased"}  # a method may take another preset than the grid's
    stitched = {cell.env: cell.settings["actor_p_trajectory"] for cell in grid.cells if cell.algo == "gciql"}
    assert stitched["pointmaze-giant-stitch-v0"] == 0.5 and stitched["pointmaze-large-navigate-v0"] == 1.0


def test_the_papers_tables_have_a_published_number_for_every_cell():
    for name, count in (("paper-table-2", 6 * 7), ("paper-sensitivity", 6 * 20)):
        grid = read_grid(name, "paper")
        columns = [(method, label) for method in grid.methods for label in grid.variants[method]]
        numbers, source = published_numbers(grid.published, grid.environments, columns)
        assert len(numbers) == count and "paper" in source
    assert numbers["antmaze-large-diverse-v2", ("H_max=10", "asym sigma=20")] == (71.8, 6.5)
    assert numbers["kitchen-mixed-v0", ("H_max=20", "sym sigma=50")] == (56.4, 3.2)


def test_common_settings_hold_where_a_method_has_none_of_its_own():
    methods = [
        {"algo": "iel"},
        {"algo": "hilp", "settings": {"steps": 70}},
        {"algo": "gcbc", "where": {"*": {"steps": 8}}},
    ]
    table = {**GOOD, "methods": methods, "settings": {"steps": 50}, "scales": {"short": {"settings": {"steps": 9}}}}
    for scale, steps in (("short", 9), (None, 9)):  # the only scale is the default one
        assert [cell.settings["steps"] for cell in check_grid(table, "g", scale).cells[:3]] == [steps, 70, 8]
    del table["scales"]
    assert [cell.settings["steps"] for cell in check_grid(table, "g").cells[:3]] == [50, 70, 8]
    with pytest.raises(ConfigError, match=r"HILP has no setting settings\.beta"):
        check_grid({**table, "settings": {"beta": 0.2}}, "g")
    with pytest.raises(ConfigError, match=r"settings\.preset belongs at the top"):
        check_grid({**table, "settings": {"preset": "smoke"}}, "g")
    with pytest.raises(ConfigError, match="expected `object`, got `int` at settings"):
        check_grid({**table, "settings": 5}, "g")


def test_a_method_may_have_planners_and_settings_of_its_own_at_one_scale():
    own = {"planners": ["direct"], "settings": {"steps": 9, "preset": "smoke"}}
    method = {
        "algo": "iel",
        "planners": ["sym-graph"],
        "settings": {"beta": 0.3, "steps": 50},
        "scales": {"short": own},
    }
    table = {**GOOD, "methods": [method], "settings": {"steps": 7}, "scales": {"long": {}, "short": {"seeds": [4]}}}
    long, short = (check_grid(table, "g", scale) for scale in ("long", "short"))
    for grid, planners, steps in ((long, ("sym-graph",), 50), (short, ("direct",), 9)):
        assert grid.variants["iel"] == planners
        assert {(cell.settings["beta"], cell.settings["steps"]) for cell in grid.cells} == {(0.3, steps)}
    hidden = [grid.cells[0].settings["hidden"] for grid in (long, short)]
    assert hidden[1] == list(METHODS["iel"].preset("smoke").hidden) != hidden[0]
    for wrong, word in (({"shrt": own}, "shrt"), ({"short": {"episodes": 3}}, "episodes"), ({"short": 3}, "`object`")):
        for scale in ("long", "short"):
            with pytest.raises(ConfigError, match=word):
                check_grid({**table, "methods": [{**method, "scales": wrong}]}, "g", scale)


def test_the_ant_at_laptop_scale_has_maps_of_equal_length():
    cells = [cell for cell in read_grid("geometries", "laptop-ant").cells if cell.method != "common policy"]
    for cell in cells:
        phases = config_from_dict(METHODS[cell.algo], cell.settings).phases()
        maps = sum(phase.steps for phase in phases if phase.name != "policy")
        assert maps == (32_000 if cell.algo == "psm" else 24_000), cell.method  # PSM: a basis, then what it is worth


IEL, GCBC = {"algo": "iel"}, {"algo": "gcbc"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environments": [MAZE, "pointmaze-hugo-navigate-v0"]}, "Unknown environment 'pointmaze-hugo-navigate-v0'"),
        ({"environments": []}, "length >= 1 at environments"),
        ({"seeds": [0, 0]}, "Seeds must be different"),
        ({"colour": "red"}, "Unknown key 'colour'"),
        ({"protocol": {"episodes": 0}}, "expected `int` >= 1 at protocol.episodes"),
        ({"protocol": {"sed": 1}}, "protocol: Unknown key 'sed': did you mean seed"),
        ({"protocol": {"action": "wave"}}, "'wave' at protocol.action"),
        ({"protocol": {"tasks": [1, 1]}}, "tasks must be different at protocol"),
        ({"planners": {"wide": {"planner": "asym-grap"}}}, "Unknown planner 'asym-grap': did you mean asym-graph"),
        ({"planners": {"sym-graph": {"nods": 7}}}, "'planners.sym-graph.nods': did you mean planners.sym-graph.nodes"),
        ({"methods": []}, "[[methods]]"),
        ({"methods": [{**IEL, "planners": ["direct", "rec-mit"]}]}, "'rec-mit': did you mean rec-mid"),
        ({"methods": [{**IEL, "settings": {"betta": 0.1}}]}, "'betta': did you mean beta"),
        ({"methods": [{**IEL, "where": {"nowhere": {"betta": 0.1}}}]}, "'betta': did you mean beta"),
        ({"methods": [{"algo": "gcbq"}]}, "'gcbq': did you mean gcbc"),
        ({"methods": [{**GCBC, "planners": ["sym-graph"]}]}, "cannot drive method"),
        ({"methods": [{**GCBC, "settings": {"steps": "many"}}]}, "steps is 'many'"),
        ({"methods": [{"algo": "hilp", "settings": {"discount": 2.0}}]}, "expected `float` < 1.0"),
        ({"methods": [{**IEL, "settings": {"policy": 5}}]}, "Method 'iel'"),
        ({"methods": [IEL, GCBC, IEL]}, "Two methods are called 'iel'"),
    ],
)
def test_errors_are_named_with_their_position(change, said):
    with pytest.raises(ConfigError) as error:
        check_grid({**GOOD, **change}, "bad")
    assert said in str(error.value) and str(error.value).startswith("The grid 'bad': ")


def test_errors_stop_the_command_before_anything_is_written(tmp_path, capsys):
    (tmp_path / "bad.toml").write_text('environments = ["nowhere"]\n[[methods]]\nalgo = "nothing"\n')
    with pytest.raises(SystemExit) as end:
        main(["compare", str(tmp_path / "bad.toml"), "--scale", "huge", "--out", str(tmp_path / "out")])
    message = capsys.readouterr().err
    assert end.value.code == 2 and message.count("\n") == 1
    assert "'huge'" in message
    assert not (tmp_path / "out").exists()


def test_fingerprints_follow_everything_that_decides_a_result():
    base = check_grid(GOOD, "good").cells[0]
    train, evaluation = base.training_fingerprint("d"), base.evaluation_fingerprint("d", base.planners[1])
    changes = (
        {"data": {"episodes": 30}},
        {"methods": [{"algo": "iel", "planners": ["direct", "sym-graph"], "settings": {"beta": 0.2}}]},
        {"seeds": [2]},
    )
    for change in changes:
        cell = check_grid({**GOOD, **change}, "other").cells[0]
        assert cell.training_fingerprint("d") != train
    assert base.training_fingerprint("other data") != train
    other = {"episodes": 3}, {"seed": 1}, {"action": "sample"}
    for change in (*({"protocol": part} for part in other), {"planners": {"sym-graph": {"nodes": 9}}}):
        cell = check_grid({**GOOD, **change}, "other").cells[0]
        assert cell.training_fingerprint("d") == train  # the model is the same and is not trained again
        assert cell.evaluation_fingerprint("d", cell.planners[1]) != evaluation
    renamed = check_grid({**GOOD, "title": "other"}, "renamed").cells[0]
    assert renamed.evaluation_fingerprint("d", renamed.planners[1]) == evaluation


def test_a_planner_may_be_driven_by_the_policy_of_another_method():
    waypoint_policy = {"algo": "iel", "label": "waypoint policy", "settings": {"policy": "waypoints"}}
    other = {"algo": "hilp", "planners": ["sym-graph", "common"]}
    common = {"common": {"planner": "sym-graph", "policy_of": "waypoint policy"}}
    table = {**GOOD, "planners": common, "methods": [waypoint_policy, other]}
    by = {(cell.method, cell.seed): cell for cell in check_grid(table, "g").cells}
    driven, driver = by["hilp", 1], by["waypoint policy", 1]
    assert driven.driver("waypoint policy").directory("d") == driver.directory("d") and not driver.drivers
    own, common_one = (driven.evaluation_fingerprint("d", variant) for variant in driven.planners)
    longer = {**table, "methods": [{**waypoint_policy, "settings": {**waypoint_policy["settings"], "steps": 9}}, other]}
    changed = next(cell for cell in check_grid(longer, "g").cells if (cell.method, cell.seed) == ("hilp", 1))
    assert changed.directory("d") == driven.directory("d")  # nothing is trained again but the waypoint policy
    assert changed.evaluation_fingerprint("d", changed.planners[0]) == own
    assert changed.evaluation_fingerprint("d", changed.planners[1]) != common_one
    for change, said in (
        ({"settings": {}}, "only the policy waypoints"),
        ({"planners": ["common"]}, "can have no policy_of"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_grid({**table, "methods": [{**waypoint_policy, **change}, other]}, "g")
    with pytest.raises(ConfigError, match="waypoint polcy"):
        check_grid({**table, "planners": {"common": {"planner": "sym-graph", "policy_of": "waypoint polcy"}}}, "g")


def test_a_planner_may_be_requested_for_some_columns_of_the_goals_by_environment():
    parts = {"planner": "sym-graph", "goal_columns": {"*-medium-*": [1]}}
    table = {**GOOD, "planners": {"parts": parts}}
    table["methods"] = [{"algo": "iel", "planners": ["sym-graph", "parts"]}]
    cell = check_grid(table, "g").cells[0]
    whole, part = cell.planners
    assert whole.columns_in(cell.env) is None
    assert part.columns_in("pointmaze-medium-navigate-v0") == (1,) and part.columns_in("antmaze-large-v0") is None
    matched = "medium" in cell.env
    prints = [cell.evaluation_fingerprint("d", variant) for variant in cell.planners]
    assert (prints[0] != prints[1]) == matched
    with pytest.raises(ConfigError, match="goal_columns"):
        check_grid({**table, "planners": {"parts": {**parts, "goal_columns": {"*": [-1]}}}}, "g")


def test_measuring_earlier_checkpoints_trains_anew_and_the_default_is_the_last_alone():
    one, same, three = (
        check_grid({**GOOD, "protocol": protocol}, "g").cells[0]
        for protocol in ({"episodes": 5}, {"episodes": 5, "checkpoints": 1}, {"episodes": 5, "checkpoints": 3})
    )
    assert one.directory("x") == same.directory("x") != three.directory("x")
    assert one.evaluation_fingerprint("x", one.planners[0]) == same.evaluation_fingerprint("x", same.planners[0])


def test_data_of_environments_that_match_a_pattern():
    table = {
        "environments": ["pointmaze-medium-navigate-v0", "pointmaze-giant-navigate-v0"],
        "data": {"episodes": 300, "seed": 1, "where": {"*-giant-*": {"episodes": 20}}},
        "methods": [{"algo": "gcbc"}],
    }
    found = {cell.env.split("-")[1]: cell.data for cell in check_grid(table, "g").cells}
    assert found == {"medium": DataChoice(300, 1), "giant": DataChoice(20, 1)}
    for special, said in (({"episodes": -1}, r"data\.where.*\.episodes"), ({"epochs": 2}, r"data\.where.*'epochs'")):
        table["data"]["where"] = {"*-giant-*": special}
        with pytest.raises(ConfigError, match=said):
            check_grid(table, "g")
