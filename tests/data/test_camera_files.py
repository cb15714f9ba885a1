"""Cameras of LeRobot data sets and robomimic files: which are read, their frames, the kept copy, hostile files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from fidec.data import cameras, check_dataset, load_dataset
from fidec.data.source import absolute_source
from fidec.data.sources import lerobot as layout
from fidec.errors import ConfigError, DataError
from helpers import robomimic_tool

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'fidec[lerobot]'")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fidec[lerobot]'")
parquet = pytest.importorskip("pyarrow.parquet")

from helpers.lerobot_files import ACTIONS, FPS, ROWS, SIZES, STATES, STEPS, frame, write_lerobot, write_video  # noqa: E402

FRONT = "observation.images.front"
KEPT = np.arange(ROWS) % STEPS != STEPS - 1  # the last row of a cut episode is only a next state


def expected(key: str = FRONT) -> np.ndarray:
    return np.stack([frame(row, SIZES[key]) for row in range(ROWS)])


@pytest.mark.parametrize(("version", "kind"), [("v2.1", "video"), ("v3.0", "video"), ("v3.0", "image")])
def test_cameras_are_parts_of_the_observation(tmp_path, version, kind):
    """The rows of the table are shuffled, and in v3.0 two episodes share a video."""
    root = write_lerobot(tmp_path / "set", version, kind)
    found = load_dataset(f"lerobot:{root}?cameras=front,{FRONT.replace('front', 'wrist')}")
    assert set(found.observations) == {"state", "front", "wrist"}
    np.testing.assert_array_equal(found.observations["state"], STATES[KEPT])
    np.testing.assert_allclose(found.actions, ACTIONS[KEPT])
    for part, key in (("front", FRONT), ("wrist", "observation.images.wrist")):
        wrong = np.abs(found.observations[part].astype(int) - expected(key)[KEPT])
        assert wrong.max() <= (0 if kind == "image" else 2)
        following = np.abs(found.next_observations[part].astype(int) - expected(key)[np.flatnonzero(KEPT) + 1])
        assert following.max() <= (0 if kind == "image" else 2)
    assert found.info["cameras"] == {"front": FRONT, "wrist": "observation.images.wrist"}


def test_without_a_choice_cameras_are_left_out_and_named(tmp_path):
    root = write_lerobot(tmp_path / "set")
    found = load_dataset(f"lerobot:{root}")
    np.testing.assert_array_equal(found.observations, STATES[KEPT])
    text = check_dataset(found).to_text()
    assert "not read: observation.images.front, observation.images.wrist" in text
    assert "?cameras=" in text
    assert not (root / ".fidec-unpacked").exists()


def test_cameras_are_resized_by_exact_area_averages():
    image = np.random.default_rng(0).integers(0, 256, (12, 20, 3)).astype(np.uint8)
    whole = image.reshape(3, 4, 5, 4, 3).mean(axis=(1, 3))  # 4 x 4 pixels each
    np.testing.assert_array_equal(cameras.resize(image, (3, 5)), np.floor(whole + 0.5))
    for size in ((5, 7), (12, 7), (24, 40), (1, 1), (13, 3)):
        fine = image.repeat(size[0], 0).repeat(size[1], 1).astype(float)
        blocks = fine.reshape(size[0], 12, size[1], 20, 3).mean(axis=(1, 3))
        np.testing.assert_array_equal(cameras.resize(image, size), np.floor(blocks + 0.5 + 1e-9))
    assert cameras.resize(image, (12, 20)) is image


def test_resized_cameras_and_the_names_of_all(tmp_path):
    root = write_lerobot(tmp_path / "set", kind="image")
    found = load_dataset(f"lerobot:{root}?cameras=all&size=8x10")
    assert found.observations["front"].shape == (KEPT.sum(), 8, 10, 3)
    same = np.stack([cameras.resize(image, (8, 10)) for image in expected()[KEPT]])
    np.testing.assert_array_equal(found.observations["front"], same)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("cameras=frnt", "there is no camera 'frnt'"),
        ("cameras=", "names no camera"),
        ("size=64x64", "names no camera"),
        ("cameras=front&size=64", "expected HEIGHTxWIDTH"),
        ("cameras=front&size=0x9", "expected HEIGHTxWIDTH"),
        ("cameras=front&size=99999x9", "expected HEIGHTxWIDTH"),
        ("camera=front", "there is no option 'camera'; did you mean cameras"),
        ("cameras=front,front", "two of the same name"),
        ("cameras=images", "there is no camera 'images'"),
        ("size=8x8&holes=allow", "names no camera"),
        ("holes=yes", "holes is 'yes'; expected allow"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path, options, words):
    root = write_lerobot(tmp_path / "set", kind="image")
    with pytest.raises(ConfigError, match=words):
        load_dataset(f"lerobot:{root}?{options}")


def test_names_of_cameras_are_those_of_parts():
    def chosen(*names, known=("a.images.top", "b.top", "c.side")):
        return cameras.Cameras(names).chosen("set", known)

    assert chosen("side") == {"side": "c.side"}
    assert chosen("b.top", "c.side") == {"top": "b.top", "side": "c.side"}
    for names, known, words in (
        (("top",), ("a.images.top", "b.top"), "'top' may be a.images.top or b.top; give the whole name"),
        (("all",), ("a.images.top", "b.top"), "two of the same name"),
        (("all",), (), "has no camera"),
        (("all",), ("observation.images.state",), "a camera is called 'state'"),
    ):
        with pytest.raises(ConfigError, match=words):
            chosen(*names, known=known)


def test_a_source_with_cameras_means_the_same_in_every_directory(tmp_path, monkeypatch):
    write_lerobot(tmp_path / "set", kind="image")
    monkeypatch.chdir(tmp_path)
    assert absolute_source("lerobot:set?cameras=front") == f"lerobot:{tmp_path}/set?cameras=front"
    assert absolute_source("robomimic:a.hdf5#train?cameras=b") == f"robomimic:{tmp_path}/a.hdf5#train?cameras=b"
    assert cameras.split_cameras("odd?name.hdf5") == ("odd?name.hdf5", cameras.Cameras())


# --- the kept copy -------------------------------------------------------------------------------------------------


def test_frames_are_decoded_once_and_again_after_a_change(tmp_path, monkeypatch):
    root = write_lerobot(tmp_path / "set")
    source, calls = f"lerobot:{root}?cameras=front", []
    decode = cameras.video_frames

    def counted(path, *args):
        calls.append(Path(path).name)
        return decode(path, *args)

    monkeypatch.setattr("fidec.data.sources.lerobot.video_frames", counted)
    first = load_dataset(source).sha256
    assert load_dataset(source).sha256 == first
    assert calls == ["file-000.mp4", "file-001.mp4"]
    copy = root / ".fidec-unpacked" / "set.observation.images.front.48x64.npy"
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)  # damaged
    assert load_dataset(source).sha256 == first
    assert len(calls) == 4
    video = root / "videos" / FRONT / "chunk-000" / "file-001.mp4"
    write_video(video, [255 - frame(row, SIZES[FRONT]) for row in range(2 * STEPS, ROWS)])
    assert load_dataset(source).sha256 != first
    assert len(calls) == 6
    load_dataset(f"{source}&size=8x8")
    assert len(calls) == 8  # another size has a copy of its own
    assert not list(copy.parent.glob(".*"))


def test_two_processes_make_one_copy(tmp_path):
    root = write_lerobot(tmp_path / "set")
    code = "import sys; from fidec.data import load_dataset; print(load_dataset(sys.argv[1]).sha256)"
    command = [sys.executable, "-c", code, f"lerobot:{root}?cameras=all"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    hashes = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(hashes) == 1
    assert len(list((root / ".fidec-unpacked").iterdir())) == 4  # two arrays and their records


def test_large_cameras_stay_on_the_disk(tmp_path, monkeypatch):
    root = write_lerobot(tmp_path / "set")
    small = load_dataset(f"lerobot:{root}?cameras=all")
    monkeypatch.setattr("fidec.data.disk_array.MAPPED_BYTES", 0)
    large = load_dataset(f"lerobot:{root}?cameras=all")
    assert large.mapped
    assert not small.mapped
    assert large.sha256 == small.sha256


# --- hostile data sets ---------------------------------------------------------------------------------------------


def change_info(root: Path, **changes) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_episodes(root: Path, key: str, values: list) -> None:
    path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    columns = parquet.read_table(path).to_pydict()
    parquet.write_table(pa.table(columns | {f"videos/{FRONT}/{key}": values}), path)


def refused(root: Path, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_dataset(f"lerobot:{root}?cameras=front")
    assert not list(root.glob(".fidec-unpacked/*"))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("../outside/{video_key}.mp4", "leads out of the data set"),
        ("/etc/{video_key}.mp4", "leads out of the data set"),
        ("videos/{video_key.__class__}.mp4", "expected a path with fields"),
        ("videos/{secret}.mp4", "its fields may be video_key"),
        ("videos/{chunk_index:999999999d}.mp4", "expected a path with fields"),
        ("videos/nothing.mp4", "does not exist: the data set is incomplete"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path, template, words):
    root = write_lerobot(tmp_path / "set")
    change_info(root, video_path=template)
    refused(root, words)


def test_links_out_of_the_data_set_are_refused(tmp_path):
    root = write_lerobot(tmp_path / "set")
    video = root / "videos" / FRONT / "chunk-000" / "file-000.mp4"
    outside = tmp_path / "private.mp4"
    video.rename(outside)
    video.symlink_to(outside)
    refused(root, "leads out of the data set")
    table = root / "data" / "chunk-000" / "file-000.parquet"
    table.rename(tmp_path / "private.parquet")
    table.symlink_to(tmp_path / "private.parquet")
    with pytest.raises(DataError, match=r"file-000.parquet: leads out of the data set"):
        load_dataset(f"lerobot:{root}")


def test_links_of_the_hubs_cache_are_followed(tmp_path):
    """There, files of a snapshot are links to blobs beside it."""
    write_lerobot(tmp_path / "set", kind="image")
    plain = load_dataset(f"lerobot:{tmp_path / 'set'}?cameras=all").sha256
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    for number, file in enumerate(sorted((tmp_path / "set").rglob("*.*"))):
        if file.is_file() and ".fidec" not in str(file):
            link = snapshot / file.relative_to(tmp_path / "set")
            link.parent.mkdir(parents=True, exist_ok=True)
            file.rename(tmp_path / "hub" / "blobs" / str(number))
            link.symlink_to(tmp_path / "hub" / "blobs" / str(number))
    assert load_dataset(f"lerobot:{snapshot}?cameras=all").sha256 == plain


def test_damaged_videos_are_refused(tmp_path):
    root = write_lerobot(tmp_path / "set")
    video = root / "videos" / FRONT / "chunk-000" / "file-000.mp4"
    good = video.read_bytes()
    for content in (b"", b"not a video", good[: len(good) // 2], bytes(len(good))):
        video.write_bytes(content)
        refused(root, "cannot be decoded")
    damaged = bytearray(good)
    size = int.from_bytes(damaged[damaged.index(b"mdat") - 4 : damaged.index(b"mdat")], "big")
    stop = damaged.index(b"mdat") - 4 + size  # the first 700 bytes or so are a comment of the encoder
    damaged[stop - 200 : stop - 100] = bytes(100)
    video.write_bytes(damaged)
    refused(root, r"cannot be decoded|is damaged|has no frame at")
    video.write_text(f"#EXTM3U\n#EXTINF:1,\n{tmp_path / 'secret.mp4'}\n")  # a playlist would name other files
    refused(root, "cannot be decoded")


def test_a_video_of_another_size_or_too_short_is_refused(tmp_path):
    root = write_lerobot(tmp_path / "set")
    video = root / "videos" / FRONT / "chunk-000" / "file-000.mp4"
    write_video(video, [frame(row, (32, 32)) for row in range(2 * STEPS)])
    refused(root, "a frame has 32 x 32 pixels, and info.json says 48 x 64")
    write_video(video, [frame(row, SIZES[FRONT]) for row in range(STEPS + 2)])
    refused(root, r"has no frame at 0\.\d+ s, the time of a row; the nearest is at 0\.700 s")


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("from_timestamp", [0.0, 0.6, 5.0], r"has no frame at 5\.000 s"),
        ("from_timestamp", [0.0, float("nan"), 0.0], "from_timestamp of episode 1 is nan"),
        ("from_timestamp", [0.0, -1.0, 0.0], "from_timestamp of episode 1 is -1"),
        ("from_timestamp", [0.0, 1e300, 0.0], "has no frame at"),
        ("file_index", [0, 0, 7], "does not exist"),
        ("file_index", [0, 0, -1], "does not exist"),
        ("episode_index", ["a", "b", "c"], "is not a number|cannot|invalid"),
    ],
)
def test_time_stamps_and_indices_that_lie_are_refused(tmp_path, key, values, words):
    root = write_lerobot(tmp_path / "set")
    if key == "episode_index":
        path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        columns = parquet.read_table(path).to_pydict()
        parquet.write_table(pa.table(columns | {key: [0, 1, 1]}), path)
        words = f"does not say where {FRONT} of episode 2 is"
    else:
        change_episodes(root, key, values)
    refused(root, words)


def test_meta_data_that_lies_is_refused(tmp_path):
    root = write_lerobot(tmp_path / "set")
    for fps in (0, -1, None, 1e9):
        change_info(root, fps=fps)
        refused(root, "fps is")
    change_info(root, fps=FPS)
    good = json.loads((root / "meta" / "info.json").read_text())["features"]
    for shape in ([48, 64], [0, 64, 3], [10**9, 64, 3], [48, "x", 3]):
        change_info(root, features=good | {FRONT: {"dtype": "video", "shape": shape}})
        refused(root, r"has the shape|is not the meta data")


def test_images_that_are_none_are_refused(tmp_path):
    root = write_lerobot(tmp_path / "set", kind="image")
    path = root / "data" / "chunk-000" / "file-000.parquet"
    columns = parquet.read_table(path).to_pydict()
    good = columns[FRONT][0]["bytes"]
    for content, words in (
        (b"GIF89a", "is not a readable PNG or JPEG"),
        (good[:60], "is not a readable PNG or JPEG"),
        (None, "is not stored in the table itself"),
        (columns["observation.images.wrist"][0]["bytes"], "has 32 x 32 pixels, and info.json says 48 x 64"),
    ):
        images = [{"bytes": content, "path": "/etc/passwd"}, *columns[FRONT][1:]]
        parquet.write_table(pa.table(columns | {FRONT: images}), path)
        refused(root, words)


def test_two_rows_of_one_frame_are_refused(tmp_path):
    root = write_lerobot(tmp_path / "set")
    path = root / "data" / "chunk-000" / "file-000.parquet"
    table = parquet.read_table(path)
    parquet.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)
    refused(root, "two rows of data/ have the same episode_index and frame_index")


def test_lists_that_take_no_space_are_not_read(tmp_path, monkeypatch):
    """A few kB of Parquet can declare any number of equal values."""
    root = write_lerobot(tmp_path / "set")
    path = root / "data" / "chunk-000" / "file-000.parquet"
    columns = parquet.read_table(path).to_pydict()
    bomb = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(ROWS * 50_000, np.float32)), 50_000)
    parquet.write_table(pa.table(columns | {"observation.state": bomb}), path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("fidec.data.tables.free_host_memory", lambda: 1e6)
    with pytest.raises(DataError, match=r"declares 18 rows of .*GB, and 0\.0 GB are free; not read"):
        load_dataset(f"lerobot:{root}")


def test_a_template_is_filled_without_format_strings():
    filled = layout.fill("videos/{video_key}/file-{file_index:03d}.mp4", "x", video_key="front", file_index=7)
    assert filled == "videos/front/file-007.mp4"


# --- robomimic -----------------------------------------------------------------------------------------------------


def write_robomimic(path: Path, next_obs: bool) -> Path:
    images = expected()
    with h5py.File(path, "w") as file:
        for episode in range(ROWS // STEPS):
            rows = slice(episode * STEPS, (episode + 1) * STEPS)
            demo = file.create_group(f"data/demo_{episode}")
            for name in ("obs", "next_obs") if next_obs else ("obs",):
                shift = -1 if name == "next_obs" else 0
                demo[f"{name}/eef"] = np.roll(STATES, shift, 0)[rows]
                demo.create_dataset(
                    f"{name}/agentview_image", data=np.roll(images, shift, 0)[rows], compression="gzip"
                )
                demo[f"{name}/depth"] = np.zeros((STEPS, 4, 4, 1), np.float32)
            demo["actions"], demo["rewards"] = ACTIONS[rows], np.arange(STEPS, dtype=np.float32)
            demo.attrs["num_samples"] = STEPS
            if next_obs:
                demo["dones"] = np.arange(STEPS) == STEPS - 1
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
    return path


@pytest.mark.parametrize("next_obs", [True, False])
def test_images_of_robomimic_are_parts(tmp_path, next_obs):
    path = write_robomimic(tmp_path / "image.hdf5", next_obs)
    found = load_dataset(f"robomimic:{path}?cameras=agentview_image")
    kept = np.ones(ROWS, bool) if next_obs else KEPT
    following = np.roll(np.arange(ROWS), -1)[kept]
    np.testing.assert_array_equal(found.observations["agentview_image"], expected()[kept])
    np.testing.assert_array_equal(found.next_observations["agentview_image"], expected()[following])
    np.testing.assert_array_equal(found.observations["state"], STATES[kept])
    assert found.info["left_out"] == ["depth"]
    some = load_dataset(f"robomimic:{path}#train?cameras=agentview_image&size=6x8")
    train = np.isin(np.arange(ROWS) // STEPS, (0, 2)) & kept
    same = np.stack([cameras.resize(image, (6, 8)) for image in expected()[train]])
    np.testing.assert_array_equal(some.observations["agentview_image"], same)


@pytest.mark.slow
def test_robomimic_itself_reads_the_same(tmp_path):
    """robomimic has no writer: its scripts use h5py. So its reader is compared, on the file of this test."""
    python = os.environ.get("FIDEC_ROBOMIMIC_PYTHON")
    if not python:
        pytest.skip("FIDEC_ROBOMIMIC_PYTHON is not set to a Python that has robomimic")
    path = write_robomimic(tmp_path / "image.hdf5", next_obs=True)
    command = [python, robomimic_tool.__file__, path, tmp_path / "found.npz", "train"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.load(tmp_path / "found.npz")
    ours = load_dataset(f"robomimic:{path}#train?cameras=agentview_image")
    np.testing.assert_allclose(ours.actions, theirs["actions"])
    np.testing.assert_array_equal(ours.rewards, theirs["rewards"])
    np.testing.assert_array_equal(ours.masks, 1 - theirs["dones"])
    for key, part in (("observations", "obs"), ("next_observations", "next_obs")):
        np.testing.assert_array_equal(getattr(ours, key)["state"], theirs[f"{part}/eef"])
        np.testing.assert_array_equal(getattr(ours, key)["agentview_image"], theirs[f"{part}/agentview_image"])


def test_images_of_robomimic_that_differ_are_refused(tmp_path):
    path = write_robomimic(tmp_path / "image.hdf5", False)
    with h5py.File(path, "a") as file:
        del file["data/demo_2/obs/agentview_image"]
        file["data/demo_2/obs/agentview_image"] = np.zeros((STEPS, 4, 4, 3), np.uint8)
    with pytest.raises(DataError, match=r"demo_2/obs/agentview_image' is uint8 of shape \(6, 4, 4, 3\); expected"):
        load_dataset(f"robomimic:{path}?cameras=agentview_image")
    with pytest.raises(ConfigError, match="there is no camera 'depth'"):
        load_dataset(f"robomimic:{path}?cameras=depth")
