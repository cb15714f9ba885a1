"""`fidec data get hf:ID` against a hub on this machine, and the source `hf:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fidec.cli import main
from fidec.data import load_dataset
from fidec.data.source import absolute_source
from fidec.data.sources.hf import download_hub
from fidec.errors import ConfigError, DataError

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'fidec[hub]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fidec[lerobot]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'fidec[lerobot]'")

from helpers.hub_server import COMMIT, hub_server

SET = Path(__file__).parent / "files" / "lerobot-v3"


def files() -> dict[str, bytes]:
    found = [path for path in sorted(SET.rglob("*")) if path.is_file() and ".fidec" not in str(path)]
    return {path.relative_to(SET).as_posix(): path.read_bytes() for path in found} | {"README.md": b"hello"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No file of the user is read or written."""
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def test_a_data_set_of_the_hub_is_downloaded_once_and_pinned(tmp_path, monkeypatch, capsys):
    with pytest.raises(DataError, match=r"is not downloaded. Get it with `fidec data get hf:lab/arm`"):
        load_dataset("hf:lab/arm")
    with hub_server(files()) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert main(["data", "get", "hf:lab/arm"]) == 0
        folder = tmp_path / "data" / "hf" / "lab" / "arm"
        assert capsys.readouterr().out == f"{folder}\n"
        count = len(asked)
        assert main(["data", "get", "hf:lab/arm"]) == 0
        assert len(asked) == count
    # Without the server from here on.
    found = load_dataset("hf:lab/arm?cameras=front&size=12x16")
    assert found.sha256 == load_dataset(f"lerobot:{folder}?cameras=front&size=12x16").sha256
    assert found.info["revision"] == COMMIT
    assert found.name == "lab/arm"
    assert {path.name for path in folder.iterdir()} == {"meta", "data", "videos", "manifest.json", ".fidec-unpacked"}
    assert not list(folder.parent.glob(".*"))
    assert load_dataset(f"hf:lab/arm@{COMMIT[:8]}").size == found.size
    with pytest.raises(DataError, match=f"the downloaded revision is {COMMIT}"):
        load_dataset("hf:lab/arm@fff")
    assert absolute_source("hf:lab/arm?cameras=front") == "hf:lab/arm?cameras=front"
    table = folder / "data" / "chunk-000" / "file-000.parquet"
    table.write_bytes(table.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"hf:lab/arm: .*file-000.parquet has \d+ bytes.*get it again"):
        load_dataset("hf:lab/arm")


def test_an_interrupted_download_goes_on(tmp_path, monkeypatch):
    video = next(name for name in files() if name.endswith(".mp4"))
    with hub_server(files(), broken={video}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(DataError, match=r"could not be downloaded from .*the same command continues"):
            download_hub("lab/arm")
    assert not (tmp_path / "data" / "hf" / "lab" / "arm").exists()
    with hub_server(files()) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        download_hub("lab/arm")
        assert sum(path.endswith("info.json") for path in asked) <= 1  # what was complete is not fetched again
    assert load_dataset("hf:lab/arm").size == 35


def test_videos_can_be_left_out(monkeypatch):
    with hub_server(files()) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert main(["data", "get", "hf:lab/arm", "--no-videos"]) == 0
        assert not any(path.endswith(".mp4") for path in asked)
    assert load_dataset("hf:lab/arm").size == 35
    with pytest.raises(DataError, match="does not exist: the data set is incomplete"):
        load_dataset("hf:lab/arm?cameras=front")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lab/none", "there is no data set lab/none on"),
        ("lab/secret", "lab/secret is gated: its owner has to give you access"),
        ("lab/arm@gone", "lab/arm has no revision 'gone'"),
    ],
)
def test_what_the_hub_does_not_give_is_said(tmp_path, monkeypatch, text, words):
    with hub_server(files()) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(DataError, match=words):
            download_hub(text)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "hf-home" not in str(path)]


def test_without_network_the_address_is_named(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"could not be downloaded from http://127.0.0.1:9 .*Check the network"):
        download_hub("lab/arm")


def test_what_is_no_lerobot_data_set_is_not_kept(tmp_path, monkeypatch):
    with hub_server({"data/train.parquet": b"x"}) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(DataError, match="it is not a LeRobotDataset"):
            download_hub("lab/arm")
    assert not list((tmp_path / "data" / "hf" / "lab").iterdir())


def test_paths_of_a_hostile_hub_stay_in_the_data_set(tmp_path, monkeypatch):
    hostile = {"data/../../../../evil.parquet": b"evil", "data//etc/evil": b"evil"}
    with hub_server(files() | hostile) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(DataError):
            download_hub("lab/arm")
    inside = tmp_path / "data" / "hf" / "lab"
    assert all(path.is_relative_to(inside) for path in tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("text", ["arm", "../arm", "lab/../arm", "lab/arm/x", "lab/arm@", "/lab/arm", "lab/arm@../x"])
def test_ids_that_are_none_are_refused(text):
    for function in (download_hub, lambda each: load_dataset(f"hf:{each}")):
        with pytest.raises(ConfigError, match="is not an id of the hub"):
            function(text)


def test_formats_that_need_tensorflow_are_refused_in_words():
    for source in ("rlds:bridge", "tfds:droid/1.0.0"):
        with pytest.raises(
            ConfigError, match=r"data is not read: its records need TensorFlow.*npz:FILE.*lerobot:DIR"
        ):
            load_dataset(source)
