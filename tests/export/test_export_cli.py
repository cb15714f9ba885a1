"""`fidec export`: files, refusals, names from elsewhere."""

from __future__ import annotations

import json
import shutil

import pytest

from fidec import extras
from fidec.export import run as exporting
from helpers.runs import check_error


@pytest.fixture(scope="module")
def trained(tmp_path_factory, npz):
    from fidec.cli import main

    # A name that would do harm in Python source, in markdown or in a shell.
    run = tmp_path_factory.mktemp("runs") / "a'\"); import os #`<script>`\n$(id)"
    data = tmp_path_factory.mktemp("data") / "x`<b>'''\";raise.npz"
    shutil.copy(npz, data)
    words = ["--algo", "bc", "--algo.hidden", "8", "--steps", "2", "--batch-size", "8"]
    assert main(["train", "--data", f"npz:{data}", *words, "--out", str(run)]) == 0
    return run


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(exporting, "COUNT", 35)
    monkeypatch.setattr(exporting, "SIZES", (7, 7))


def test_a_run_is_exported_whatever_its_name(cli, trained):
    code, out, err = cli("export", trained, "--to", "numpy", "--license", "CC0")
    assert code == 0, err
    place = trained / "export" / "numpy"
    names = ["README.md", "metadata.json", "policy.py", "policy.safetensors"]
    assert sorted(path.name for path in place.iterdir()) == names
    assert "35 random and 35 real observations: largest difference" in out
    metadata = json.loads((place / "metadata.json").read_text())
    manifest = json.loads((trained / "policy" / "manifest.json").read_text())
    assert metadata["policy_sha256"] == manifest["files"]["model.safetensors"]["sha256"]
    assert metadata["data"]["sha256"] == json.loads((trained / "environment.json").read_text())["dataset"]["sha256"]
    assert metadata["verification"]["real"] == 35
    for name in ("README.md", "policy.py"):
        text = (place / name).read_text()
        assert not [word for word in ("script", "import os", "<b>", "`;") if word in text]
    compile((place / "policy.py").read_text(), "policy.py", "exec")
    check_error(cli("export", trained, "--to", "numpy"), 2, "not an empty directory", "--out")
    code, out, err = cli("export", trained, "--to", "numpy", "--out", "again", "--json")
    assert code == 0, err
    assert json.loads(out)["license"] is None
    shutil.rmtree(place.parent)


def test_without_its_data_only_random_observations_are_compared(cli, trained, tmp_path):
    shutil.copytree(trained / "policy", tmp_path / "alone")
    check_error(cli("export", "alone", "--to", "numpy"), 2, "policy without its run", "--out")
    code, out, err = cli("export", "alone", "--to", "numpy", "--out", "out")
    assert code == 0, err
    assert "35 random and 0 real observations" in out
    assert "only random observations were compared: alone is a policy without its run" in out
    assert "alone" not in (tmp_path / "out" / "metadata.json").read_text()
    assert "none from the data" in (tmp_path / "out" / "README.md").read_text()
    check_error(cli("export", "alone", "--to", "numpy", "--out", "b", "--data", "npz:no.npz"), 1, "no.npz")


def test_wrong_words(cli, trained, tmp_path, monkeypatch):
    check_error(cli("export", "nowhere", "--to", "onnx"), 1, "there is no policy at nowhere")
    check_error(cli("export", trained, "--to", "onxx"), 2, "did you mean onnx?", "numpy, onnx, stablehlo")
    check_error(cli("export", trained, "--to", "onnx", "--noise", "-1"), 2, "noise must be a finite number")
    check_error(cli("export", trained, "--to", "onnx", "--strength", "0.5"), 2, "strength must be 1")
    check_error(cli("export", trained, "--to", "onnx", "--candidates", "3"), 2, "no candidates")
    check_error(cli("export", trained, "--to", "onnx", "--candidates", "0"), 2, "candidates must be at least 1")
    check_error(cli("export", trained, "--to", "onnx", "--tolerance", "0"), 2, "tolerance must be positive")
    (tmp_path / "file").write_text("")
    check_error(cli("export", trained, "--to", "onnx", "--out", "file"), 2, "not an empty directory")

    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "import_module", missing)
    check_error(cli("export", trained, "--to", "onnx"), 2, "export to ONNX needs the package onnx", "'fidec[export]'")
    check_error(cli("export", trained, "--to", "stablehlo"), 2, "needs the package flatbuffers", "'fidec[export]'")
    assert not (trained / "export").exists()
