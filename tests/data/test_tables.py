"""CSV, Parquet and LeRobot: the same trajectories from every format, and an error for each fault."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from iel import Trajectories, load
from iel.data import examine
from iel.data.catalogue import read
from iel.data.scaling import unit_actions
from iel.errors import DataError
from iel.loader import kind_of

EPISODES, STEPS = 3, 30


@pytest.fixture(scope="module")
def data() -> Trajectories:
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(size=(EPISODES, STEPS + 1, 2)), axis=1).astype(np.float32)
    actions = rng.uniform(-1, 1, (EPISODES, STEPS, 1)).astype(np.float32)
    return Trajectories.from_episodes(list(zip(walks, actions, strict=True)), name="walk")


def lines(data: Trajectories, separator: str = ",", last: str = "") -> list[str]:
    """Rows below the header: episode, step, x, y, action, battery; the last action of an episode is empty."""
    found = []
    for e, (states, actions) in enumerate(data):
        for t, (x, y) in enumerate(states.astype(float).tolist()):
            action = repr(float(actions[t, 0])) if t < len(actions) else last
            found.append(separator.join([str(e), str(t), repr(x), repr(y), action, "0.5"]))
    return found


HEADER = "episode,step,observation.x,observation.y,action,battery"


def written(path: Path, *content: str) -> Path:
    path.write_text("\n".join(content) + "\n")
    return path


@pytest.mark.parametrize("last", ["", "0", "nan"])
def test_a_csv_file_is_the_data_it_was_written_from(data, tmp_path, last, capsys):
    found = load(written(tmp_path / "log.csv", HEADER, *lines(data, last=last)))
    assert found.fingerprint == data.fingerprint and found.source == tmp_path / "log.csv"
    assert "not read: battery" in capsys.readouterr().err


def test_names_separators_and_text_that_people_use(data, tmp_path):
    table = [line.split(";") for line in lines(data, ";")]
    named = [f"run {e};2024-05-01T12:00:{int(t):02d};{x};{y};{a}" for e, t, x, y, a, _ in table]
    path = written(tmp_path / "log.csv", "﻿run;time;x;y;speed", *named)
    columns = {"observations": ["x", "y"], "actions": "speed", "episode": "run"}
    found = load(path, columns=columns)
    assert found.fingerprint == data.fingerprint
    assert found.source is None  # its path alone would not say which columns were meant
    with pytest.raises(DataError, match=r"no observation columns.*it has run, time, x, y, speed.*iel data convert"):
        load(path)
    with pytest.raises(DataError, match="no column 'z'"):
        load(path, columns={"observations": ["z"]})
    with pytest.raises(DataError, match="unknown field `states`; it takes observations, actions"):
        load(path, columns={"states": ["x"]})


NAMES = ("9007199254740992", "9007199254740993", "1e400", "2e400", "1", "01", "1.0", "inf", "nan")


@pytest.mark.parametrize("last", ["0", ""], ids=["whole", "an empty cell"])
def test_names_of_episodes_are_text(tmp_path, last):
    """The same nine episodes, whichever cells are empty elsewhere."""
    rows = [f"{name},{e},{step},{last if step == 2 else 0}" for e, name in enumerate(NAMES) for step in range(3)]
    assert len(load(written(tmp_path / "log.csv", "episode,obs_0,obs_1,act", *rows), trust=True)) == len(NAMES)


RISING = {
    "nanoseconds": ["1772442000000000000", "1772442000000000001", "1772442000000000002"],
    "seconds to the nanosecond": ["1772442000.000000000", "1772442000.000000001", "1772442000.000000002"],
    "dates": ["2026-03-29T02:30:00.000000001", "2026-03-29T02:30:00.000000002", "2026-03-29T02:30:00.000000003"],
    "dates of one zone": ["2026-10-25T02:59:59+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25 02:00:01Z"],
    "from before 1970": ["1969-12-31T23:59:59.9Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000001Z"],
}


@pytest.mark.parametrize("times", RISING.values(), ids=RISING)
def test_times_are_compared_as_they_are_written(times, tmp_path, monkeypatch):
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        rows = [f"0,{when},{n},0" for n, when in enumerate(times)]
        assert load(written(tmp_path / "log.csv", "episode,time,obs,act", *rows), trust=True).num_states == 3
        with pytest.raises(DataError, match="line 4: 'time' does not rise"):
            read(written(tmp_path / "log.csv", "episode,time,obs,act", *rows[:1], rows[2], rows[1]))


@pytest.fixture(autouse=True)
def _zone():
    yield
    time.tzset()


def test_logs_with_even_dates_have_a_rate(tmp_path):
    rows = [f"{e},2026-05-0{e + 1}T12:00:{t / 4:06.3f}Z,{t},{e},0" for e in range(2) for t in range(20)]
    assert load(written(tmp_path / "log.csv", "episode,time,obs,obs_2,act", *rows), trust=True).signals.rate == 4.0
    uneven = [row.replace(":04.", ":05.") for row in rows[:19:3]]
    assert load(written(tmp_path / "log.csv", "episode,time,obs,obs_2,act", *uneven), trust=True).signals.rate != 4.0
    plain = [f"0,{t / 4},{t},{t % 7},0" for t in range(20)]  # their unit is not known
    assert load(written(tmp_path / "log.csv", "episode,time,obs,obs_2,act", *plain)).signals.rate is None


GAPPED = [[float(t), 10.0 * t, 0.1] for t in range(12)]
"""x, y, action of an episode."""


def gapped(path: Path, *empty: tuple[int, int]) -> Path:
    """Two episodes; these cells (row, column) of the first one are empty."""
    rows = [[repr(value) for value in row] for row in GAPPED]
    for row, column in empty:
        rows[row][column] = ""
    return written(
        path, "episode,obs_x,obs_y,act", *[f"0,{','.join(row)}" for row in rows], "1,0,1,0", "1,2,1,0", "1,3,5,0"
    )


def test_gaps_are_refused_with_counts_and_choices(tmp_path):
    path = gapped(tmp_path / "log.csv", (4, 0), (5, 0), (7, 1), (9, 2), (11, 2))
    counts = r"2 in .*'obs_x' \(0\) and 1 in .*'obs_y' \(1\) and 1 in action column 'act' \(0\)\)"
    with pytest.raises(DataError, match=rf"line 6, .*'obs_x' \(0\): .*\({counts}.*--gaps cut.*--gaps interpolate"):
        load(path)
    (finding,) = examine(path)
    assert finding.kind == "unreadable" and "2 in observation column 'obs_x'" in finding.message
    assert [found.kind for found in examine(path, columns={"gaps": "cut"}) if found.severity == "error"] == []
    with pytest.raises(DataError, match="invalid enum value"):
        load(path, columns={"gaps": "fill"})


def test_gaps_are_cut_out(tmp_path):
    """A state that is not known is left out; an unknown action leads nowhere: an episode ends where it would act."""
    data = load(gapped(tmp_path / "log.csv", (4, 0), (8, 2)), columns={"gaps": "cut"}, trust=True)
    assert [episode.observations[:, 0].tolist() for episode in data] == [
        [0, 1, 2, 3],
        [5, 6, 7, 8],
        [9, 10, 11],
        [0, 2, 3],
    ]
    assert data.source is None and data.signals.observations == ("obs_x", "obs_y")
    short = load(
        gapped(tmp_path / "log.csv", (2, 1), (5, 1)), columns={"gaps": "cut"}, trust=True
    )  # two rows: no episode
    assert [len(episode.actions) for episode in short] == [5, 2]


def test_short_gaps_are_filled_in_time(tmp_path):
    path = gapped(tmp_path / "log.csv", (4, 0), (5, 0), (7, 1))
    filled = load(path, columns={"gaps": "interpolate"}, trust=True)
    np.testing.assert_allclose(filled.episode(0).observations, np.array(GAPPED)[:, :2])
    times = "0,1,5,0,0", "0,2,,0,0", "0,4,20,0,0", "0,9,30,0,0"  # a third of the time, a third of the distance
    timed = written(tmp_path / "timed.csv", "episode,time,obs_x,obs_y,act", *times)
    assert load(timed, columns={"gaps": "interpolate"}, trust=True).observations[1, 0] == 10.0
    # Long ones, those at an end and actions are cut: six cells, the first row, one action.
    ends = gapped(tmp_path / "ends.csv", *((row, 1) for row in range(3, 9)), (0, 0), (10, 2))
    data = load(ends, columns={"gaps": "interpolate"}, trust=True)
    assert [len(episode.observations) for episode in data] == [3]  # 1, 2 | 9, 10 | 11: none has two steps; episode 1


def test_a_cell_that_goes_on_in_the_next_line_is_refused(tmp_path):
    """A stray quote would make rows part of a text that is not read."""
    rows = ["0,1,0,a", '0,2,0,"b', "0,3,0,c", '0,4,0,d"', "0,5,0,e", "0,6,0,f"]
    with pytest.raises(DataError, match="line 5: a quoted cell goes on"):
        read(written(tmp_path / "log.csv", "episode,obs,act,note", *rows))
    with pytest.raises(DataError, match="is not a CSV file"):
        read(written(tmp_path / "log.csv", "episode,obs,act,note", *rows[:3]))


def test_a_folder_holds_an_episode_per_file(data, tmp_path):
    for e, (states, actions) in enumerate(data):
        rows = [f"{x!r},{y!r},{float(actions[t, 0]) if t < STEPS else 0!r}" for t, (x, y) in enumerate(states.tolist())]
        written(tmp_path / f"episode_{e + 9}.csv", "obs_0,obs_1,act", *rows)  # 9, 10, 11: numbers, not letters
    assert load(tmp_path).fingerprint == data.fingerprint
    written(tmp_path / "episode_12.csv", "obs_0,act", "1,0", "2,0", "3,0")
    with pytest.raises(DataError, match="other columns than"):
        load(tmp_path)


FAULTS = {
    "an underscore": ([HEADER, "0,0,1,2,0,1", "0,1,1,1_0,0,1"], "line 3, column 'observation.y': '1_0' is not"),
    "a damaged name": (
        ["obs,act,terminals,timeoutt", "1,0,0,0", "2,0,0,1", "3,0,0,0", "4,0,1,0"],
        "rename it to timeouts",
    ),
    "begins with numbers": (["1,2,3", "4,5,6"], "names the columns"),
    "text in a cell": ([HEADER, "0,0,1,2,0,1", "0,1,1,two,0,1"], "line 3, column 'observation.y': 'two' is not"),
    "a short line": ([HEADER, "0,0,1,2,,1", "0,1,1"], "line 3: 3 cells for 6 columns"),
    "a lost newline": (["episode,obs,act", "0,1,0", "0,2,00,3,0", "0,4,0"], "line 3: 5 cells for 3 columns"),
    "a decimal comma": (["episode,obs,act", "0,1,0", "0,2,5,0", "0,4,0"], "line 3: 4 cells for 3 columns"),
    "two columns of one name": (["episode,obs,obs,act", "0,1,2,0"], "two columns called 'obs'"),
    "no boundaries": (["obs,act", "1,0", "2,0", "3,0"], "does not say where episodes end"),
    "episodes in pieces": (["episode,obs,act", "0,1,0", "1,2,0", "0,3,0"], "not together; sort them by 'episode'"),
    "time that stands": (["episode,step,obs,act", "0,1,1,0", "0,1,2,0", "0,2,2,0"], "'step' does not rise"),
    "a last row without its flag": (["obs,act,terminals", "1,0,0", "2,0,0", "3,0,0"], "the file is cut off"),
    "a missing state": (
        ["episode,obs,act", "0,1,0", "0,,0", "0,3,0", "0,4,0"],
        "line 3, observation column 'obs' (0): the cell is empty (1 in observation column 'obs' (0))",
    ),
    "infinity": (
        ["episode,obs,act", "0,1,0", "", "0,-inf,0", "0,3,0"],
        "line 4, observation column 'obs' (0): the value",
    ),
    "an episode without a name": (
        ["episode,obs,act", "0,1,0", " ,2,0", "0,3,0"],
        "line 3, column 'episode': the cell is",
    ),
    "a flag that is none": (
        ["obs,act,terminals", "1,0,0", "2,0,2", "3,0,1"],
        "line 3, column 'terminals': the flag is 2",
    ),
    "zones that differ": (
        ["episode,time,obs,act", "0,2026-01-01T00:00:00,1,0", "0,2026-01-01T00:00:01Z,2,0"],
        "line 3, column 'time': a date has a time zone",
    ),
    "no date among dates": (
        ["episode,time,obs,act", "0,2026-01-01T00:00:00,1,0", "0,7,2,0"],
        "line 3, column 'time': '7' is not a date",
    ),
    "no rows": ([HEADER], "no rows"),
}


@pytest.mark.parametrize("content, sentence", FAULTS.values(), ids=FAULTS)
def test_faults_are_reported_with_line_and_column(tmp_path, content, sentence):
    path = written(tmp_path / "log.csv", *content)
    with pytest.raises(DataError) as refusal:
        read(path)
    assert sentence in str(refusal.value) and "log" in str(refusal.value)
    assert any(finding.severity == "error" for finding in examine(path))


def test_text_counts_against_the_budget(data, tmp_path, monkeypatch):
    path = written(tmp_path / "log.csv", HEADER, *lines(data))
    monkeypatch.setenv("IEL_MEMORY_BUDGET", "10kB")
    with pytest.raises(DataError, match="IEL_MEMORY_BUDGET"):
        load(path)


def test_kinds_are_reported_by_content(tmp_path):
    kinds = {b"a,b\n1,2\n": "text", b"PAR1....": "parquet", b"hello\n": "unknown", b"\0,\n\0\n": "unknown"}
    for content, kind in kinds.items():
        (tmp_path / "file").write_bytes(content)
        assert kind_of(tmp_path / "file") == kind


def test_actions_in_other_units_are_stretched_and_back(data):
    other = Trajectories(data.observations, 7.0 * data.actions + 3.0, data.offsets, checked=True)
    unit = unit_actions(other)
    used = data.transitions
    assert unit.actions[used].min() == -1 and unit.actions[used].max() == 1
    back = unit.signals.in_units(unit.actions[used], "robot")
    np.testing.assert_allclose(back, other.actions[used], rtol=1e-5, atol=1e-5)
    flat = unit_actions(Trajectories(data.observations, 0 * data.actions + 5, data.offsets, checked=True))
    assert not flat.actions.any()


# ------------------------------------------------------------------------------------------------------------ Parquet


@pytest.fixture(scope="module")
def table(data):
    pa = pytest.importorskip("pyarrow")
    count = data.num_states
    states = pa.FixedSizeListArray.from_arrays(pa.array(data.observations.ravel()), 2)
    actions = pa.array([row.tolist() for row in data.actions])
    episode = np.repeat(np.arange(EPISODES), STEPS + 1)
    frame = np.tile(np.arange(STEPS + 1), EPISODES)
    return pa.table({
        "observation.state": states, "action": actions, "timestamp": (frame / 10).astype(np.float32),
        "frame_index": frame, "episode_index": episode, "index": np.arange(count), "task_index": np.zeros(count, int),
    })  # fmt: skip


def lerobot(root: Path, table, version: str, **changes) -> Path:
    """A data set as LeRobot writes it: of version 2 a file per episode, of version 3 one for all."""
    import pyarrow.parquet as pq

    features = {"observation.state": {"dtype": "float32", "shape": [2]}, "action": {"dtype": "float32", "shape": [1]},
                "observation.images.top": {"dtype": "video", "shape": [3, 4, 4]}}  # fmt: skip
    facts = {"codebase_version": version, "total_episodes": EPISODES, "total_frames": table.num_rows}
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps({**facts, "features": features, **changes}))
    (root / "data" / "chunk-000").mkdir(parents=True)
    if version.startswith("v3"):
        pq.write_table(table, root / "data" / "chunk-000" / "file-000.parquet", row_group_size=40)
    else:
        for e in range(EPISODES):
            part = table.slice(e * (STEPS + 1), STEPS + 1)
            pq.write_table(part, root / "data" / "chunk-000" / f"episode_{e:06d}.parquet")
    return root


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_lerobots_layouts_are_read(data, table, tmp_path, version, capsys):
    found = load(lerobot(tmp_path / "set", table, version))
    assert found.fingerprint == data.fingerprint
    assert "pictures are not read: observation.images.top" in capsys.readouterr().err


def test_lerobot_data_that_is_cut_off_or_of_another_kind_is_refused(table, tmp_path):
    with pytest.raises(DataError, match=r"should have 94 frames but holds 93"):
        load(lerobot(tmp_path / "a", table, "v3.0", total_frames=94))
    with pytest.raises(DataError, match="versions 2 and 3 are read"):
        load(lerobot(tmp_path / "b", table, "v1.6"))
    with pytest.raises(DataError, match=r"no observations among its features \(action\)"):
        load(lerobot(tmp_path / "c", table, "v3.0", features={"action": {}}))


def test_parquet_is_a_table_like_csv(data, table, tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(table, tmp_path / "log.parquet")
    assert load(tmp_path / "log.parquet").fingerprint == data.fingerprint
    flat = table.drop_columns(["observation.state", "action"])
    for column in range(2):
        flat = flat.append_column(f"state_{column}", [data.observations[:, column]])
    flat = flat.append_column("action_0", [data.actions[:, 0]])
    pq.write_table(flat, tmp_path / "flat.parquet", compression="gzip")
    assert load(tmp_path / "flat.parquet").fingerprint == data.fingerprint


def ids_and_times(path: Path, ids, times) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"episode": ids, "time": times, "obs": np.arange(6.0), "obs_2": np.ones(6), "act": np.zeros(6)}
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_tells_episodes_apart_by_all_digits_and_by_text(tmp_path):
    pa, path, times = pytest.importorskip("pyarrow"), tmp_path / "log.parquet", [1, 2, 3] * 2
    texts = ["1"] * 3 + ["01"] * 3
    for ids in (
        np.repeat([2**53, 2**53 + 1], 3),
        pa.array(texts),
        pa.array(texts).dictionary_encode(),
        [0.0] * 3 + [0.5] * 3,
    ):
        assert len(load(ids_and_times(path, ids, times), trust=True)) == 2
    for ids in ([2.0**53] * 6, [1.0] * 3 + [np.nan] * 3, [np.inf] * 6, np.full(6, 2**24, np.float32)):
        with pytest.raises(DataError, match=r"row \d: 'episode' is .* does not tell episodes apart"):
            read(ids_and_times(path, ids, times))
    with pytest.raises(DataError, match="row 2, column 'episode': the cell is empty"):
        read(ids_and_times(path, pa.array([2**53, 2**53, None, 1, 1, 1]), times))
    with pytest.raises(DataError, match="row 4: the rows of an episode are not together"):
        read(ids_and_times(path, [1, 1, 1, 2, 1, 2], times))


def test_parquet_compares_times_to_the_nanosecond(tmp_path):
    pa, path, ids = pytest.importorskip("pyarrow"), tmp_path / "log.parquet", np.repeat([0, 1], 3)
    ns = 1772442000000000000 + np.array([0, 1, 2, 3, 4, 5])
    for times in (
        ns,
        ns.astype(np.uint64),
        pa.array(ns, pa.timestamp("ns")),
        pa.array(ns, pa.timestamp("ns", "Asia/Tokyo")),
    ):
        assert len(load(ids_and_times(path, ids, times), trust=True)) == 2
    for times in (ns[::-1], pa.array(ns[::-1], pa.timestamp("ns")), [*ns[:2], None, *ns[3:]]):
        with pytest.raises(DataError, match=r"row [12].*(does not rise|is empty)"):
            read(ids_and_times(path, ids, times))
    tenths = pa.array(np.arange(6) * 100, pa.timestamp("ms"))
    assert load(ids_and_times(path, ids, tenths), trust=True).signals.rate == 10.0


def test_lerobot_says_names_and_rate(data, table, tmp_path):
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": {"motors": ["shoulder", "elbow"]}},
        "action": {"dtype": "float32", "shape": [1], "names": ["push"]},
    }
    signals = load(lerobot(tmp_path / "set", table, "v3.0", features=features, fps=30)).signals
    assert (signals.observations, signals.actions, signals.rate) == (("shoulder", "elbow"), ("push",), 30.0)
    plain = load(lerobot(tmp_path / "plain", table, "v2.1")).signals
    assert (plain.observations, plain.rate) == (("observation.state[0]", "observation.state[1]"), None)


def test_a_lerobot_file_that_is_not_there_is_noticed(table, tmp_path):
    root = lerobot(tmp_path / "set", table, "v2.0")
    (root / "data" / "chunk-000" / "episode_000001.parquet").unlink()
    with pytest.raises(DataError, match="should have 93 frames but holds 62"):
        load(root)


def test_a_damaged_parquet_file_is_refused_in_a_sentence_or_reads_the_same(data, table, tmp_path):
    """Flipped bits and cut ends: pages have checksums, the footer has none."""
    import pyarrow.parquet as pq

    path = tmp_path / "log.parquet"
    pq.write_table(table, path, write_page_checksum=True)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        location, bit = int(rng.integers(len(content))), int(rng.integers(8))
        changed = bytearray(content)
        changed[location] ^= 1 << bit
        path.write_bytes(bytes(changed))
        try:
            read(path, trust=True)
        except DataError as refusal:
            assert "log" in str(refusal)
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(DataError):
            read(path)


def test_a_footer_that_contradicts_itself_is_refused(table, tmp_path):
    """A column that may be empty became one that may not, by one bit: the library ended the whole process."""
    import pyarrow.parquet as pq

    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    content = path.read_bytes()
    assert b"\x25\x02\x18" in content  # repetition: optional, then a name
    path.write_bytes(content.replace(b"\x25\x02\x18", b"\x25\x00\x18"))
    with pytest.raises(DataError, match="not a whole Parquet file"):
        load(path)


def test_memory_is_held_against_the_budget_while_rows_are_read(table, tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    pq.write_table(table, tmp_path / "log.parquet")
    monkeypatch.setenv("IEL_MEMORY_BUDGET", f"{table.nbytes}B")
    with pytest.raises(DataError, match="IEL_MEMORY_BUDGET"):
        load(tmp_path / "log.parquet")
    monkeypatch.setenv("IEL_MEMORY_BUDGET", f"{4 * table.nbytes}B")
    assert load(tmp_path / "log.parquet").num_states == table.num_rows


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"\.\[parquet\]"):
        load(tmp_path / "log.parquet")
