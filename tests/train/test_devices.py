"""One training on several devices is that on one, up to rounding; each of several seeds has its own device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time

import pytest

from fidec.launch import launch
from helpers import device_runs
from helpers.runs import check_error, fingerprint, read_rows

# Of the largest number of each array. A sum over devices adds the same numbers in another order; 40 updates of Adam
# made that 2e-7 to 1e-6 here.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def tiny_runs(plugin_site, tmp_path_factory):
    out = tmp_path_factory.mktemp("devices")
    return out, device_runs.run("tiny", out, plugin_site, flags=os.environ.get("XLA_FLAGS", ""))


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
def test_critics_split_over_devices(tmp_path):
    found = device_runs.run("critics", tmp_path, timeout=600)
    assert max(found["distances"]) < TOLERANCE
    assert found["heads"] == [[1]]  # each of eight devices has one of eight critics
    assert found["count"] == 24  # 6 arrays of the heads: parameters, targets and both moments of Adam
    assert found["others"] == 0
    assert found["sums"] > 0
    assert found["sums of heads"] == 0  # each device has the whole gradient of its critics
    uneven, alone, none = found["refused"]
    assert "rebrac has 4 critics, expected a multiple of the 8 devices" in uneven
    assert "give --devices, or leave it out" in alone
    assert "bc has no critics" in none


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fidec", "fql", "deflow_frozen"])
def test_methods_with_and_without_a_frozen_flow(method, tmp_path):
    assert max(device_runs.run(method, tmp_path)) < TOLERANCE


@pytest.fixture
def pair(plugin_site):
    """pair(port, *words): two processes of `fidec train` that train one run. They are ended with the test."""
    started, environ = [], {"PYTHONPATH": str(plugin_site), "XLA_FLAGS": "", "FIDEC_COMPILE_CACHE": "off"}

    def start(port: int, *words: object) -> list[subprocess.Popen]:
        for number in (0, 1):
            link = ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process", f"{number}"]
            how = {"environ": environ, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            started.append(launch("-m", "fidec", "train", *map(str, words), *link, **how))
        return started[-2:]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


GIVEN = ["--algo", "tiny", "--batch-size", "16", "--log-interval", "10", "--checkpoint-interval", "10"]


@pytest.mark.slow
def test_two_processes_are_one_run(npz, tiny, cli, tmp_path, pair):
    given = ["--data", f"npz:{npz}", *GIVEN, "--steps", "40", "--out"]
    said = []
    for process in pair(free_port(), *given, tmp_path / "two"):
        said.append(process.communicate(timeout=200)[1])
        assert process.returncode == 0, said
    assert "process 1 of 2 follows process 0" in said[1]
    assert cli("train", *given, tmp_path / "one")[0] == 0
    assert device_runs.distance(tmp_path / "two", tmp_path / "one", 40) < TOLERANCE


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_with_words_and_it_resumes(npz, tmp_path, pair):
    out = tmp_path / "run"
    leader, other = pair(free_port(), "--data", f"npz:{npz}", *GIVEN, "--steps", 500, "--out", out)
    while not list((out / "checkpoints").glob("0*")):
        assert leader.poll() is None, leader.communicate()
        time.sleep(0.02)
    other.kill()
    said = leader.communicate(timeout=200)[1]
    assert leader.returncode == 1, said
    assert "another process of this training has ended or cannot be reached" in said
    assert "Traceback" not in said
    assert json.loads((out / "status.json").read_text())["state"] == "failed"
    for process in pair(free_port(), "--resume", out):
        said = process.communicate(timeout=200)[1]
        assert process.returncode == 0, said
    assert json.loads((out / "status.json").read_text())["state"] == "done"
    assert "resumed" in (out / "run.log").read_text()


def test_processes_need_an_address_and_their_numbers(cli, npz, tmp_path):
    base = ["train", "--data", f"npz:{npz}", "--steps", 4, "--out", tmp_path / "run"]
    check_error(cli(*base, "--processes", 2), 2, "need the address of process 0: --coordinator HOST:PORT")
    check_error(cli(*base, "--coordinator", "here:1", "--processes", 2), 2, "found --processes 2 and --process None")
    check_error(cli(*base, "--coordinator", "here:1", "--processes", 2, "--process", 2), 2, "from 0 to N - 1")
    check_error(cli(*base, "--coordinator", "auto", "--processes", 2), 2, "leave out --process and --processes")
