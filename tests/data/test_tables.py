"""CSV, Parquet and LeRobot: the same trajectories whatever they were kept in, and a sentence for what is wrong."""

import json
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
    with pytest.raises(DataError, match="no entry 'states'"):
        load(path, columns={"states": ["x"]})


def test_names_of_episodes_are_text(tmp_path):
    names = ("9007199254740992", "9007199254740993", "1e400", "2e400", "1", "01")
    rows = [f"{name},{e},{step},0" for e, name in enumerate(names) for step in range(3)]
    assert len(load(written(tmp_path / "log.csv", "episode,obs_0,obs_1,act", *rows), trust=True)) == len(names)


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
    "a missing state": (["episode,obs,act", "0,1,0", "0,,0", "0,3,0", "0,4,0"], "step 1, observation column 0"),
    "no rows": ([HEADER], "no rows"),
}


@pytest.mark.parametrize("content, sentence", FAULTS.values(), ids=FAULTS)
def test_faults_are_said_with_line_and_column(tmp_path, content, sentence):
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


def test_kinds_are_told_by_content(tmp_path):
    kinds = {b"a,b\n1,2\n": "text", b"PAR1....": "parquet", b"hello\n": "unknown", b"\0,\n\0\n": "unknown"}
    for content, kind in kinds.items():
        (tmp_path / "file").write_bytes(content)
        assert kind_of(tmp_path / "file") == kind


def test_actions_in_other_units_are_stretched_and_back(data):
    other = Trajectories(data.observations, 7.0 * data.actions + 3.0, data.offsets, checked=True)
    unit, low, high = unit_actions(other)
    used = data.transitions
    assert unit.actions[used].min() == -1 and unit.actions[used].max() == 1
    back = low + (unit.actions[used] + 1) * (high - low) / 2
    np.testing.assert_allclose(back, other.actions[used], rtol=1e-5, atol=1e-5)
    flat, _, _ = unit_actions(Trajectories(data.observations, 0 * data.actions + 5, data.offsets, checked=True))
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


def test_a_damaged_parquet_file_is_refused_in_a_sentence_or_reads_the_same(data, table, tmp_path):
    """Flipped bits and cut ends: pages have checksums, the footer has none."""
    import pyarrow.parquet as pq

    path = tmp_path / "log.parquet"
    pq.write_table(table, path, write_page_checksum=True)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        place, bit = int(rng.integers(len(content))), int(rng.integers(8))
        changed = bytearray(content)
        changed[place] ^= 1 << bit
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
    with pytest.raises(DataError, match=r"iel\[parquet\]"):
        load(tmp_path / "log.parquet")
