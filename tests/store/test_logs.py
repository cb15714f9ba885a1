"""Logs: exact numbers, whole lines, and the same bytes after a kill and a resume."""

from __future__ import annotations

import json
import os
import shutil
import struct

import jax.numpy as jnp
import numpy as np
import pytest

from fidec.errors import RunError
from fidec.store import versions
from fidec.store.logs import JsonlLog, RunLog, TensorBoardLog, line_of, read_jsonl
from helpers import some


def test_lines_positions_and_truncation(tmp_path):
    log = JsonlLog(tmp_path / "train.jsonl")
    assert log.position() == 0
    log.write({"step": 1, "loss": np.float32(0.1), "nan": jnp.float32(np.nan), "text": "a\nb"})
    first = log.position()
    assert log.path.read_bytes() == b'{"step": 1, "loss": 0.1, "nan": null, "text": "a\\nb", "crc32": "88216b35"}\n'
    log.write_all([{"step": 2}, {"step": 3}])
    assert log.position() == log.path.stat().st_size > first
    log.cut_back(first)
    log.write({"step": 4})
    assert [event["step"] for event in read_jsonl(log.path)] == [1, 4]
    size = log.position()
    for wrong in (first - 1, size + 1):
        with pytest.raises(RunError, match=r"train\.jsonl.*was changed or lost.*copy.*--overwrite"):
            log.cut_back(wrong)
    assert log.position() == size
    log.cut_back(0)
    assert log.position() == 0
    log.close()
    log.close()


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b"{", b"x" * 200_000])
@pytest.mark.parametrize("before", [b"", b'{"step": 1}\n{"step": 2}\n'])
def test_a_torn_last_line_is_left_out_and_then_removed(tmp_path, torn, before):
    path = tmp_path / "time.jsonl"
    path.write_bytes(before + torn)
    whole = [json.loads(line) for line in before.splitlines()]
    assert read_jsonl(path) == whole
    log = JsonlLog(path)
    assert path.read_bytes() == before
    log.write({"step": 3})
    assert read_jsonl(path) == [*whole, {"step": 3}]


def test_damage_inside_is_an_error_that_names_the_line(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"train\.jsonl, line 2"):
        read_jsonl(path)
    assert read_jsonl(tmp_path / "absent.jsonl") == []


def test_any_flipped_bit_of_a_log_is_noticed(tmp_path):
    """In the numbers, in the checksums, and in the line ends."""
    path, rows = tmp_path / "eval.jsonl", [{"step": n, "evaluation/score": 12.5 * n, "failed": None} for n in (1, 2)]
    good = b"".join(map(line_of, rows))
    assert all(json.loads(line).items() > row.items() for line, row in zip(good.splitlines(), rows, strict=True))
    for bit in range(0, 8 * len(good), 3):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        if bit // 8 == len(good) - 1:  # the last line then looks unfinished
            assert read_jsonl(path) == rows[:1]
        else:
            with pytest.raises(RunError, match=r"eval\.jsonl, line [12] was changed or damaged"):
                read_jsonl(path)


def test_logs_of_older_versions_are_read_without_checksums(tmp_path):
    old = b'{"step": 1, "loss": 0.5, "status": "ok"}\n{"step": 2}\n'
    (tmp_path / "train.jsonl").write_bytes(old)
    log = JsonlLog(tmp_path / "train.jsonl")
    log.cut_back(len(old))
    log.write({"step": 3})
    assert [row["step"] for row in read_jsonl(log.path)] == [1, 2, 3]


def test_a_damaged_log_is_refused_and_not_changed(tmp_path):
    path, lines = tmp_path / "train.jsonl", [line_of({"step": 10 * n, "loss": "x" * n}) for n in range(1, 7)]
    position = len(b"".join(lines[:4]))  # at step 40
    flipped = [lines[0], lines[1].replace(b"20", b"21"), *lines[2:]]
    for content, problem in (
        (flipped, "damaged lines: 2"),
        (lines[:2], f"no line ends at byte {position}"),
        (lines[2:], f"no line ends at byte {position}"),
        ([], "it has 0 bytes"),
    ):
        path.write_bytes(b"".join(content))
        log = JsonlLog(path)
        with pytest.raises(RunError, match=rf"train\.jsonl was changed or lost.*{problem}.*copy.*--overwrite"):
            log.cut_back(position)
        assert path.read_bytes() == b"".join(content)
        log.close()


def test_a_write_that_fails_half_way_leaves_whole_lines(tmp_path, monkeypatch):
    log = JsonlLog(tmp_path / "train.jsonl")
    log.write({"step": 1})
    write = os.write
    results = iter([lambda data: write(log._file, data[:5]), None])

    def failing(descriptor, data):
        result = next(results)
        if result is None:
            raise OSError(28, "No space left on device")
        return result(data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        with pytest.raises(RunError, match=r"the disk is full.*train\.jsonl.*MB are free"):
            log.write({"step": 2})
    assert log.path.read_bytes() == line_of({"step": 1})
    log.write({"step": 2})
    assert [event["step"] for event in read_jsonl(log.path)] == [1, 2]


def play(log: RunLog, steps: range) -> None:
    for step in steps:
        log.train(step, {"training/loss": np.float32(1 / step), "training/q": jnp.float32(step)})
        log.time(step, {"time/steps_per_second": 100.0})
        if step % 3 == 0:
            rows = [{"episode": n, "success": bool(n % 2)} for n in range(4)]
            log.evaluation(step, {"evaluation/score": 0.5, "evaluation/interval": [0.1, 0.9]}, rows)
        if step > 3:  # the online phase: in some steps no episode ends, in others two do
            log.exploration({"step": step, "episode": 3 * step + n} for n in range(step % 3))


def test_a_killed_and_resumed_run_has_the_same_bytes(tmp_path):
    straight = tmp_path / "straight"
    straight.mkdir()
    log = RunLog(straight)
    play(log, range(1, 11))
    log.close()

    for saved, killed in ((0, 2), (0, 6), (2, 3), (2, 9), (4, 4), (4, 9), (9, 10)):
        broken = tmp_path / f"broken-{saved}-{killed}"
        broken.mkdir()
        log = RunLog(broken)
        play(log, range(1, saved + 1))
        positions = json.loads(json.dumps(log.positions())) if saved else None
        play(log, range(saved + 1, killed + 1))
        with open(broken / "train.jsonl", "ab") as file:
            file.write(b'{"step": 99, "to')
        log = RunLog(broken)
        log.resume(positions, saved)
        play(log, range(saved + 1, 11))
        log.close()
        for name in ("train", "eval", "episodes", "exploration"):
            assert (broken / f"{name}.jsonl").read_bytes() == (straight / f"{name}.jsonl").read_bytes()
        assert len(read_jsonl(broken / "time.jsonl")) == 10 + killed - saved  # lost work is on record
        assert len(list((broken / "tb").iterdir())) == 2
    assert read_jsonl(straight / "episodes.jsonl")[5] == {"step": 6, "episode": 1, "success": True}
    assert len(read_jsonl(straight / "episodes.jsonl")) == 12


def test_exploration_has_a_file_only_if_there_was_any(tmp_path):
    log = RunLog(tmp_path, tensorboard=False)
    log.exploration([])
    offline = log.positions()
    log.resume(offline, 0)
    assert not (tmp_path / "exploration.jsonl").exists()
    log.exploration(
        [{"step": 5, "episode": 0, "return": np.float32(0.1)}, {"step": 9, "episode": 1, "return": np.nan}]
    )
    log.exploration(iter([{"step": 11, "episode": 2, "return": -3}]))
    online = log.positions()
    log.exploration([{"step": 13, "episode": 3, "return": 0}])
    log.close()
    text = (tmp_path / "exploration.jsonl").read_bytes()
    assert text.startswith(line_of({"step": 5, "episode": 0, "return": 0.1}))
    assert read_jsonl(tmp_path / "exploration.jsonl")[1] == {"step": 9, "episode": 1, "return": None}
    assert online["exploration"] < len(text)
    assert not (tmp_path / "tb").exists()

    log = RunLog(tmp_path, tensorboard=False)
    log.resume(online, 12)
    assert (tmp_path / "exploration.jsonl").read_bytes() == text[: online["exploration"]]
    log.resume({name: offline[name] for name in ("train", "eval", "episodes")}, 0)  # as an older fidec stored it
    assert (tmp_path / "exploration.jsonl").read_bytes() == b""
    log.close()

    (tmp_path / "exploration.jsonl").unlink()
    log = RunLog(tmp_path, tensorboard=False)
    with pytest.raises(RunError, match=r"exploration\.jsonl.*was changed or lost"):
        log.resume(online, 12)
    log.close()


def test_tensorboard_is_optional(tmp_path):
    log = RunLog(tmp_path, tensorboard=False)
    log.train(1, {"training/loss": 1.0})
    log.close()
    assert not (tmp_path / "tb").exists()


def read_events(directory):
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - made by the import
    from tensorboardX.record_writer import masked_crc32c

    events = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            for part, end in ((data[:8], 8), (data[12 : 12 + length], 12 + length)):
                assert struct.unpack("<I", data[end : end + 4]) == (masked_crc32c(part),)
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events


def test_tensorboard_holds_the_scalars_and_says_what_to_forget(tmp_path):
    first = TensorBoardLog(tmp_path)
    first.write(5, {"training/loss": np.float32(0.5), "training/nan": np.nan, "training/list": [1, 2], "n": 3})
    second = TensorBoardLog(tmp_path, purge_step=5)  # at once, in the same second
    second.write(6, {"only/list": [1]})
    second.close()
    first.close()
    events = read_events(tmp_path)
    scalars = [(e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in events if e.summary.value]
    assert scalars == [(5, {"training/loss": 0.5, "n": 3.0})]
    assert [(e.step, e.session_log.status) for e in events if e.HasField("session_log")] == [(5, 1)]


# --- versions -----------------------------------------------------------------------------------------------


def test_environment_names_what_matters():
    environment = versions.environment({"sha256": "abc"})
    assert environment["packages"]["numpy"] == np.__version__
    assert environment["packages"]["mujoco"]
    assert environment["devices"]
    assert environment["dataset"] == {"sha256": "abc"}
    json.dumps(environment)
    assert versions.version("no-such-package-here") is None


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_revision_only_of_tracked_sources(tmp_path):
    import subprocess

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    assert versions.git_revision(source) is None
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert versions.git_revision(source) is None
    git("add", "module.py")
    git("commit", "-q", "-m", "second")
    assert some(versions.git_revision(source))["dirty"] is False
    source.write_text("x = 2\n")
    revision = some(versions.git_revision(source))
    assert revision["dirty"] is True
    assert len(revision["commit"]) == 40
