"""One training on several devices is that on one, up to rounding; each of several seeds has its own device."""

from __future__ import annotations

import pytest

from helpers import device_runs
from helpers.runs import check_error, fingerprint, read_rows

# Of the largest number of each array. A sum over devices adds the same numbers in another order; 40 updates of Adam
# made that 2e-7 to 1e-6 here.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def tiny_runs(plugin_site, tmp_path_factory):
    from conftest import QUICK

    out = tmp_path_factory.mktemp("devices")
    return out, device_runs.run("tiny", out, plugin_site, flags=" ".join(QUICK))


def test_rows_split_over_devices_give_the_run_of_one_device(tiny_runs):
    out, found = tiny_runs
    assert max(found["distances"]) < TOLERANCE
    losses = [
        [row["training/loss"] for row in read_rows(out / name / "train.jsonl")] for name in ("1", "8", "changed")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=TOLERANCE)
    assert losses[2] == pytest.approx(losses[0], rel=TOLERANCE)
    said = (out / "changed" / "run.log").read_text()
    assert "training_devices changed since this run last ran (8 -> 2)" in said


def test_seeds_on_devices_of_their_own_are_single_runs(tiny_runs):
    out, _ = tiny_runs
    for seed, alone in ((0, "1"), (1, "seed1")):
        assert fingerprint(out / "seeds" / f"seed{seed:03d}", 20) == fingerprint(out / alone, 20)


def test_what_cannot_be_split_is_refused_before_a_directory_is_made(tiny_runs):
    _, found = tiny_runs
    uneven, many, seeds = found["refused"]
    assert "--batch-size 16 cannot be split over --devices 3: expected a multiple of 3, such as 15" in uneven
    assert "--devices 16: JAX sees 8 here (cpu)" in many
    assert "Several seeds are spread over all devices" in seeds
    assert not found["made"]


def test_the_command_line(cli, tiny, npz, tmp_path):
    base = ["train", "--data", f"npz:{npz}", "--algo", "tiny", "--steps", 4, "--out", tmp_path / "run"]
    check_error(cli(*base, "--devices", 2), 2, "--devices 2: JAX sees 1 here")
    check_error(cli(*base, "--devices", 0), 2, "devices must be at least 1")
    assert not (tmp_path / "run").exists()
    assert cli(*base, "--devices", 1, "--batch-size", 7)[0] == 0
    check_error(cli("train", "--resume", tmp_path / "run", "--steps", 8, "--devices", 2), 2, "JAX sees 1 here")
    check_error(cli("train", "--resume", tmp_path / "run", tmp_path / "run", "--devices", 1), 2, "is for one run")


@pytest.mark.slow
def test_each_device_computes_with_its_rows(tmp_path):
    found = device_runs.run("split", tmp_path)
    assert found["sums"] > 0
    assert found["parts"] > 0
    assert found["whole"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fidec", "fql", "deflow_frozen"])
def test_methods_with_and_without_a_frozen_flow(method, tmp_path):
    assert max(device_runs.run(method, tmp_path)) < TOLERANCE
