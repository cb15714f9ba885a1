"""MCAP recordings as tables, written by the packages mcap and mcap-ros2-support themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fidec.cli import main
from fidec.data import check_dataset, dataset_from_arrays, load_dataset
from fidec.errors import ConfigError, DataError

ros2 = pytest.importorskip("mcap_ros2.writer", reason="mcap-ros2-support is not installed: pip install 'fidec[mcap]'")
mcap = pytest.importorskip("mcap.writer", reason="mcap is not installed: pip install 'fidec[mcap]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fidec[tables]'")

JOINTS = (
    "std_msgs/Header header\nfloat64[] position\nstring[] name\n"
    + "=" * 80
    + ("\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n" + "=" * 80)
    + "\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
)
COMMAND = "float64[2] data\n"
CAMERA = "uint32 height\nuint8[] data\n"
STEPS = 10
RNG = np.random.default_rng(0)
POSITIONS, COMMANDS = RNG.normal(size=(2 * STEPS, 3)), RNG.uniform(-1, 1, (STEPS, 2))
MAPPING = """
files = ["run-*.mcap"]
observation = ["/arm/joints.position", "/gripper.width"]
action = ["/cmd.data"]
time = "log_time"
clock = "/cmd"
"""


def write(path: Path, compression=None) -> Path:
    """Joints at 20 Hz, commands at 10 Hz (5 ms later), a gripper (JSON) now and then, a camera."""
    with open(path, "wb") as stream:
        kwargs = {} if compression is None else {"compression": compression}
        writer = ros2.Writer(stream, **kwargs)
        kinds = (("sensor_msgs/JointState", JOINTS), ("test_msgs/Command", COMMAND), ("test_msgs/Camera", CAMERA))
        joints, command, camera = (writer.register_msgdef(name, text) for name, text in kinds)
        inner = writer._writer
        schema = inner.register_schema("gripper", "jsonschema", b"{}")
        gripper = inner.register_channel("/gripper", "json", schema)
        events = [(50 * i, joints, "/arm/joints", i) for i in range(2 * STEPS)]
        events += [(100 * i + 5, command, "/cmd", i) for i in range(STEPS)]
        events += [(300 * i + 2, gripper, "/gripper", i) for i in range(4)]
        events += [(400 * i + 1, camera, "/camera", i) for i in range(3)]
        for time, kind, topic, i in sorted(events, key=lambda event: event[0]):
            when = 1_700_000_000_000_000_000 + time * 1_000_000
            if topic == "/gripper":
                inner.add_message(gripper, when, json.dumps({"width": i / 10, "open": i > 2}).encode(), when)
                continue
            header = {"stamp": {"sec": 1, "nanosec": 2}, "frame_id": "base"}
            content = {"height": 40, "data": bytes(4800)}
            if topic == "/arm/joints":
                content = {"header": header, "position": POSITIONS[i].tolist(), "name": ["a", "b", "c"]}
            elif topic == "/cmd":
                content = {"data": COMMANDS[i].tolist()}
            writer.write_message(topic, kind, content, when, when)
        writer.finish()
    return path


def load(tmp_path: Path, mapping: str = MAPPING):
    (tmp_path / "columns.toml").write_text(mapping)
    return load_dataset(f"table:{tmp_path / 'columns.toml'}")


@pytest.mark.parametrize(
    "compression", [mcap.CompressionType.NONE, mcap.CompressionType.ZSTD, mcap.CompressionType.LZ4]
)
def test_rows_are_messages_of_the_clock_and_other_topics_hold_their_last_value(tmp_path, compression):
    for number in (2, 10):
        write(tmp_path / f"run-{number}.mcap", compression)
    found = load(tmp_path)
    widths = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3]) / 10  # every 300 ms, the clock every 100 ms
    states = np.concatenate([POSITIONS[::2], widths[:, None]], axis=1)  # the joints of 50 ms before are older
    same = dataset_from_arrays([states] * 2, [COMMANDS] * 2)
    assert found.sha256 == same.sha256
    assert (
        "rows are the messages of /cmd; other topics hold their last value"
        in check_dataset(found).facts["info"].values()
    )


def test_rows_before_the_first_value_are_left_out(tmp_path):
    write(tmp_path / "run-1.mcap")
    late = MAPPING.replace('clock = "/cmd"', 'clock = "/arm/joints"')
    found = load(tmp_path, late)
    assert found.info["rows"] == 2 * STEPS - 1  # the first joints come 5 ms before the first command
    np.testing.assert_allclose(found.observations[0, :3], POSITIONS[1], rtol=1e-6)
    np.testing.assert_allclose(found.actions[:4], COMMANDS[[0, 0, 1, 1]], rtol=1e-6)


def test_the_command_proposes_a_mapping(tmp_path, capsys):
    path = write(tmp_path / "run-1.mcap")
    with pytest.raises(DataError, match=r"a table or a recording does not say.*fidec data map"):
        load_dataset(str(path))
    with pytest.raises(ConfigError, match=r"a recording needs a mapping file\. `fidec data map FILE\.mcap`"):
        load_dataset(f"mcap:{path}")
    assert main(["data", "map", str(path)]) == 0
    text = capsys.readouterr().out
    assert 'action = ["/cmd.data"]' in text
    assert 'observation = ["/arm/joints.position", "/camera.height", "/gripper.width", "/gripper.open"]' in text
    assert 'clock = "/cmd"' in text
    assert 'time = "log_time"' in text
    assert "/camera.data" not in text
    assert load_dataset(f"table:{tmp_path / 'columns.toml'}").size == STEPS - 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'clock = "/cmd"',
            "",
            "clock is missing; expected the topic whose messages are the rows, one of /arm/joints",
        ),
        ('clock = "/cmd"', 'clock = "/none"', "clock is '/none'"),
        ("/gripper.width", "/gripper.size", "there is no column for `observation` '/gripper.size'"),
        ("/gripper.width", "/arm/joints.header.frame_id", "is text"),
        ("/gripper.width", "/camera.data", "there is no column for `observation` '/camera.data'"),
        ("/gripper.width", "/cmd.__class__", "there is no column for"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, old, new, words):
    write(tmp_path / "run-1.mcap")
    with pytest.raises(DataError, match=words):
        load(tmp_path, MAPPING.replace(old, new))


def test_damaged_recordings_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "run-1.mcap")
    good = path.read_bytes()
    middle = bytearray(good)
    middle[200:240] = bytes(40)  # in the first chunk
    for content in (b"", b"not a recording", good[: len(good) // 2], bytes(middle)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read as MCAP|has no summary"):
            load(tmp_path)
    path.write_bytes(good)
    monkeypatch.setattr("fidec.data.tables.free_host_memory", lambda: 100.0)
    with pytest.raises(DataError, match="has a chunk of"):
        load(tmp_path)


def test_a_table_has_no_clock(tmp_path):
    (tmp_path / "run-1.csv").write_text("a,b\n0,0\n1,1\n")
    with pytest.raises(ConfigError, match=r"clock is for \.mcap files"):
        load(tmp_path, 'files = ["run-1.csv"]\nobservation = ["a"]\naction = ["b"]\nclock = "/cmd"\n')
