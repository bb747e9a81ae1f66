"""Bags: the same signals in five kinds of file give the same rows; clocks, gaps and triggers; refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import Writer as McapWriter
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_typestore

from iel.data.bag_guess import guess
from iel.data.bags import Report, read_bags, read_mapping
from iel.data.trajectories import Rows
from iel.errors import DataError

START, SECONDS, BEHIND = 1_700_000_000, 12.0, 2.5
SILENT = (4.0, 7.0)
"""The pose is lost between these two times; its clock is BEHIND that of the recording."""

MAP = """
rate = 10.0
[episodes]
gap = 0.5
shortest = 0.5
{trigger}
[[observations]]
topic = "/pose"
fields = ["pose.position.x"]
names = ["x"]
units = ["m"]
align = "interpolate"
clock = "header"
offset = 2.5
[[observations]]
topic = "/pose"
fields = ["pose.orientation"]
names = ["heading"]
kind = "yaw"
align = "interpolate"
clock = "header"
offset = 2.5
[[actions]]
topic = "/cmd"
fields = ["linear.x", "angular.z"]
names = ["v", "w"]
"""


def messages():
    """(topic, seconds, what it says), in the order of the recording: a pose at 100 Hz, commands at 30, a flag at 5."""
    found = []
    for i in range(int(SECONDS * 100) + 1):
        t = i / 100
        if not SILENT[0] < t < SILENT[1]:
            found.append(("/pose", t, (2.0 * t, 0.3 * t)))
    found += [("/cmd", i / 30, (float(i), -float(i))) for i in range(int(SECONDS * 30) + 1)]
    found += [("/on", i / 5, not 8.0 <= i / 5 < 10.0) for i in range(int(SECONDS * 5) + 1)]
    return sorted(found, key=lambda entry: entry[1])


def ros_bag(path: Path, version: int, storage: StoragePlugin = StoragePlugin.SQLITE3) -> Path:
    store = get_typestore(Stores.ROS1_NOETIC if version == 1 else Stores.ROS2_HUMBLE)
    types = {name.rpartition("/")[2]: kind for name, kind in store.types.items() if name != "std_msgs/msg/Time"}
    kinds = {"/pose": "geometry_msgs/msg/PoseStamped", "/cmd": "geometry_msgs/msg/Twist", "/on": "std_msgs/msg/Bool"}

    def message(topic, t, said):
        if topic == "/on":
            return types["Bool"](said)
        if topic == "/cmd":
            return types["Twist"](types["Vector3"](said[0], 0.0, 0.0), types["Vector3"](0.0, 0.0, said[1]))
        stamp = types["Time"](*divmod(round((START + t - BEHIND) * 1e9), 10**9))
        header = types["Header"](*((0,) if version == 1 else ()), stamp, "map")
        turn = types["Quaternion"](0.0, 0.0, np.sin(said[1] / 2), np.cos(said[1] / 2))
        return types["PoseStamped"](header, types["Pose"](types["Point"](said[0], 0.0, 0.0), turn))

    writer = Writer1(path) if version == 1 else Writer2(path, version=9, storage_plugin=storage)
    with writer as bag:
        topics = {name: bag.add_connection(name, kind, typestore=store) for name, kind in kinds.items()}
        serialize = store.serialize_ros1 if version == 1 else store.serialize_cdr
        for topic, t, said in messages():
            bag.write(topics[topic], round((START + t) * 1e9), serialize(message(topic, t, said), kinds[topic]))
    return path


def json_mcap(path: Path) -> Path:
    def content(topic, t, said):
        if topic == "/on":
            return {"data": said}
        if topic == "/cmd":
            return {"linear": {"x": said[0]}, "angular": {"z": said[1]}}
        sec, nsec = divmod(round((START + t - BEHIND) * 1e9), 10**9)
        turn = {"x": 0, "y": 0, "z": np.sin(said[1] / 2), "w": np.cos(said[1] / 2)}
        return {
            "header": {"stamp": {"sec": sec, "nsec": nsec}},
            "pose": {"position": {"x": said[0]}, "orientation": turn},
        }

    with path.open("wb") as file:
        writer = McapWriter(file)
        writer.start()
        schema = writer.register_schema("thing", "jsonschema", b"{}")
        channels = {name: writer.register_channel(name, "json", schema) for name in ("/pose", "/cmd", "/on")}
        for topic, t, said in messages():
            time = round((START + t) * 1e9)
            writer.add_message(channels[topic], time, json.dumps(content(topic, t, said)).encode(), time)
        writer.finish()
    return path


@pytest.fixture(scope="module")
def bags(tmp_path_factory) -> dict[str, Path]:
    here = tmp_path_factory.mktemp("bags")
    inside = ros_bag(here / "ros2mcap", 2, StoragePlugin.MCAP)
    return {
        "ros1": ros_bag(here / "one.bag", 1),
        "ros2": ros_bag(here / "two", 2),
        "db3": next((here / "two").glob("*.db3")),
        "ros2 in mcap": inside,
        "mcap": next(inside.glob("*.mcap")),
        "json": json_mcap(here / "foxglove.mcap"),
    }


def converted(path: Path, tmp_path: Path, trigger: str = "", text: str = MAP) -> tuple[Rows, Report]:
    file = tmp_path / "map.toml"
    file.write_text(text.format(trigger=trigger))
    rows, (report,) = read_bags(path, read_mapping(file))
    return rows, report


@pytest.mark.parametrize("kind", ["ros1", "ros2", "db3", "ros2 in mcap", "mcap", "json"])
def test_every_kind_of_bag_gives_the_rows_that_were_recorded(bags, kind, tmp_path):
    rows, report = converted(bags[kind], tmp_path)
    assert rows.signals.observations == ("x", "heading.sin", "heading.cos") and rows.signals.actions == ("v", "w")
    assert rows.signals.units == {"x": "m"} and rows.signals.rate == 10.0
    t = np.delete(np.arange(121) / 10, np.arange(41, 70))  # the silence
    assert rows.offsets.tolist() == [0, 41, 92] and report.episodes == 2 and report.rows == len(t)
    np.testing.assert_allclose(rows.observations[:, 0], 2 * t, atol=1e-6)
    # A chord is interpolated between two headings 0.003 apart: that is less than 2e-6 off.
    np.testing.assert_allclose(rows.observations[:, 1:], np.stack([np.sin(0.3 * t), np.cos(0.3 * t)], 1), atol=2e-6)
    expected = np.floor(t * 30 + 1e-3)
    np.testing.assert_allclose(rows.actions, np.stack([expected, -expected], axis=1))
    assert "29 rows while /pose was silent for over 0.5 s" in str(report)


def test_the_clock_matters(bags, tmp_path):
    """Without the offset, poses are said to be two and a half seconds older than they are."""
    rows, _ = converted(bags["ros2"], tmp_path, text=MAP.replace("offset = 2.5", "offset = 0.0"))
    assert rows.observations[0, 0] == pytest.approx(2 * BEHIND)
    recorded, _ = converted(
        bags["ros2"], tmp_path, text=MAP.replace('clock = "header"', "").replace("offset = 2.5", "")
    )
    assert recorded.observations[0, 0] == pytest.approx(0.0)


@pytest.mark.parametrize(("when", "starts"), [("true", [0.0, 7.0, 10.0]), ("change", [0.0, 7.0, 8.0, 10.0])])
def test_flags_say_where_episodes_are(bags, when, starts, tmp_path):
    trigger = f'[episodes.trigger]\ntopic = "/on"\nfield = "data"\nwhen = "{when}"'
    rows, report = converted(bags["ros2"], tmp_path, trigger)
    np.testing.assert_allclose(rows.observations[rows.offsets[:-1], 0] / 2, starts, atol=1e-6)
    assert ("20 rows while /on was off" in str(report)) == (when == "true")


def test_messages_begin_episodes(bags, tmp_path):
    text = MAP.replace("rate = 10.0", "rate = 20.0").replace("shortest = 0.5", "shortest = 0.0")
    rows, _ = converted(bags["json"], tmp_path, '[episodes.trigger]\ntopic = "/on"\nwhen = "message"', text)
    assert (np.diff(rows.offsets) == 4).sum() >= 40  # a fifth of a second each
    np.testing.assert_allclose(rows.observations[rows.offsets[:5], 0], [0, 0.4, 0.8, 1.2, 1.6], atol=1e-6)


def test_a_folder_of_bags_is_their_episodes_together(bags, tmp_path):
    folder = tmp_path / "bags"
    folder.mkdir()
    for name in ("a.mcap", "b.mcap"):
        (folder / name).write_bytes(bags["mcap"].read_bytes())
    (tmp_path / "map.toml").write_text(MAP.format(trigger=""))
    rows, reports = read_bags(folder, read_mapping(tmp_path / "map.toml"))
    assert rows.offsets.tolist() == [0, 41, 92, 133, 184] and [r.file for r in reports] == ["a.mcap", "b.mcap"]


@pytest.mark.parametrize("kind", ["ros1", "ros2", "json"])
def test_the_first_guess_is_a_mapping_of_this_bag(bags, kind, tmp_path):
    text = guess(bags[kind])
    (tmp_path / "map.toml").write_text(text)
    mapping = read_mapping(tmp_path / "map.toml")
    assert [source.fields for source in mapping.actions] == [["linear.x", "angular.z"]]
    value, heading = mapping.observations
    assert value.fields == ["pose.position.x"] and heading.fields == ["pose.orientation"] and heading.kind == "yaw"
    assert heading.clock == "header" and heading.offset == pytest.approx(BEHIND)
    assert "constant: pose.position.y" in text or kind == "json"
    assert '# topic = "/on"' in text and "30.0 Hz" in text and "longest silence 3.00 s" in text
    rows, _ = read_bags(bags[kind], mapping)
    assert rows.observations.shape[1] == 3 and len(rows.offsets) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('topic = "/pose"', 'topic = "/pos"', "has no topic '/pos'; it has /cmd, /on, /pose"),
        ('"pose.position.x"', '"pose.position.q"', "have no numbers at 'pose.position.q'"),
        ('fields = ["linear.x", "angular.z"]', 'fields = ["linear.x"]\nclock = "header"', "no header.stamp"),
        ('names = ["v", "w"]', 'names = ["v"]', "1 names or units for 2 fields"),
        ("gap = 0.5", "gaps = 0.5", "gaps"),
        ("shortest = 0.5", "shortest = 50.0", "No episode is left"),
        ('align = "interpolate"', 'align = "spline"', "invalid enum value 'spline'"),
        ("offset = 2.5", "offset = 1000.0", "no time in common"),
        ("rate = 10.0", "rate = 0.0", "rate"),
    ],
)
def test_mappings_that_do_not_fit_are_refused(bags, old, new, message, tmp_path):
    with pytest.raises(DataError, match=message):
        converted(bags["ros2"], tmp_path, text=MAP.replace(old, new))


@pytest.mark.parametrize("kind", ["ros1", "mcap", "json", "db3"])
def test_damaged_bags_are_refused_in_a_sentence(bags, kind, tmp_path):
    whole = bags[kind].read_bytes()
    for number, content in enumerate((whole[: len(whole) // 2], b"", whole[:50], whole[: -len(whole) // 50])):
        cut = tmp_path / f"cut{number}{bags[kind].suffix}"
        cut.write_bytes(content)
        with pytest.raises(DataError, match="is not a whole bag"):
            converted(cut, tmp_path)


def test_numbers_that_are_not_finite_are_dropped_and_counted(tmp_path):
    path = tmp_path / "nan.mcap"
    with path.open("wb") as file:
        writer = McapWriter(file)
        writer.start()
        schema = writer.register_schema("thing", "jsonschema", b"{}")
        channel = writer.register_channel("/all", "json", schema)
        for i in range(100):
            time = round((START + i / 10) * 1e9)
            x = "null" if 40 <= i < 50 else str(i)
            writer.add_message(channel, time, f'{{"x": {x}, "a": 1}}'.encode(), time)
        writer.finish()
    text = """
rate = 10.0
observations = [{topic = "/all", fields = ["x"], gap = 0.15}]
actions = [{topic = "/all", fields = ["a"]}]
"""
    (tmp_path / "map.toml").write_text(text)
    rows, (report,) = read_bags(path, read_mapping(tmp_path / "map.toml"))
    assert rows.observations[:, 0].tolist() == [*range(40), 39, *range(50, 100)]
    assert rows.offsets.tolist() == [0, 41, 91]
    assert "10 messages of /all with numbers that are not finite" in str(report)
