"""Mirrors: complete states only, also after a cut at any request; hostile manifests; one writer."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from fidec.errors import BusyError, CheckpointError, RunError
from fidec.store import files, remote_run, staging
from fidec.store.remote import Limits, Store, Unreachable
from fidec.store.remote_run import Mirror, Snapshot, TakenOver, numbers, pull, this_process
from helpers.stores import memory_store

URL = "memory://bucket/runs/x"


@pytest.fixture
def faults(monkeypatch, tmp_path):
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "stage"))
    with memory_store(monkeypatch) as faults:
        yield faults


@pytest.fixture
def store(faults):
    return Store(URL, Limits(attempts=1))


def write(directory: Path, **contents: str) -> None:
    for name, text in contents.items():
        path = directory / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(directory: Path) -> dict[str, str]:
    return {p.relative_to(directory).as_posix(): p.read_text() for p in directory.rglob("*") if p.is_file()}


def pulled(store: Store, target: Path, warnings: list[str] | None = None) -> dict[str, str]:
    found = pull(store, target, ([] if warnings is None else warnings).append)
    assert found is not None
    return read(target)


def objects(store: Store) -> set[str]:
    return set(store.list("objects"))


def test_a_state_is_mirrored_and_read(store, tmp_path):
    source = tmp_path / "run"
    write(source, a="1", policy_b="2")
    (source / "lock").touch()
    (source / ".tmp-x").mkdir()
    (source / ".tmp-x" / "c").write_text("hidden")
    (source / "link").symlink_to("/etc/passwd")
    Mirror(store, source, None, 0).push()
    assert pulled(store, tmp_path / "copy") == {"a": "1", "policy/b": "2"}


def test_a_pulled_directory_is_exactly_the_state(store, tmp_path):
    write(tmp_path / "run", a="1", d_b="2")
    writer = Mirror(store, tmp_path / "run", None, 0)
    writer.push()
    pulled(store, tmp_path / "copy")
    write(tmp_path / "copy", c="own", **{".old-run_a": "of a killed replacement", "d_.old-1": "likewise"})
    files.remove(tmp_path / "run" / "d")
    write(tmp_path / "run", a="changed", d="a file in the place of a directory")
    writer.push()
    assert pulled(store, tmp_path / "copy") == {"a": "changed", "d": "a file in the place of a directory"}


def test_only_two_states_are_kept_and_only_what_is_new_is_sent(store, faults, tmp_path):
    write(tmp_path / "run", same="same", a="0")
    writer = Mirror(store, tmp_path / "run", None, 0)
    for number in range(5):
        write(tmp_path / "run", a=str(number))
        faults.calls.clear()
        writer.push()
        assert faults.calls.count("put_file") == (2 if number == 0 else 1)
    assert numbers(store) == [4, 5]
    assert objects(store) == {hashlib.sha256(text.encode()).hexdigest() for text in ("same", "3", "4")}


@pytest.mark.parametrize("when", ["fail", "after"])
def test_a_cut_at_any_request_leaves_a_complete_state(store, faults, tmp_path, when):
    old, new = {"a": "1", "b/c": "x" * 1000, "gone": "g"}, {"a": "2", "b/c": "y" * 1000, "d": "3"}
    states = set()
    for cut in range(40):
        store._fs.store.clear()
        source = tmp_path / f"run{cut}"
        write(source, a="1", b_c="x" * 1000, gone="g")
        writer = Mirror(store, source, None, 0)
        writer.push()
        (source / "gone").unlink()
        write(source, a="2", b_c="y" * 1000, d="3")
        faults.calls.clear()
        setattr(faults, when, lambda name, number, cut=cut: ConnectionError("cut") if number == cut else None)
        try:
            writer.push()
            complete = True
        except Unreachable:
            complete = False
        finished = len(faults.calls) <= cut
        setattr(faults, when, lambda name, number: None)
        found = pulled(store, tmp_path / f"copy{cut}")
        assert found == new if complete else found in (old, new)
        states.add((complete, found == new))
        writer.push()  # the next checkpoint mirrors what was cut
        assert pulled(store, tmp_path / f"again{cut}") == new
        if finished:
            break
    else:
        pytest.fail("a push makes more than 40 requests")
    assert {(False, False), (True, True)} <= states


def test_an_interrupted_copy_continues(store, faults, tmp_path):
    write(tmp_path / "run", **{f"f{i}": str(i) for i in range(8)})
    Mirror(store, tmp_path / "run", None, 0).push()
    faults.calls.clear()
    faults.fail = lambda name, number: ConnectionError("cut") if number == 6 else None
    with pytest.raises(Unreachable):
        pulled(store, tmp_path / "copy")
    done = sum(not name.startswith(".parts") for name in read(tmp_path / "copy"))
    faults.fail = lambda name, number: None
    faults.calls.clear()
    assert pulled(store, tmp_path / "copy") == read(tmp_path / "run")
    assert 0 < done < 8
    assert faults.calls.count("cat_file") == 1 + 8 - done  # the manifest, and what was missing


def damage(store: Store, key: str, how: str) -> None:
    path = store._path(key)
    content = bytearray(store._fs.cat_file(path))
    if how == "missing":
        store._fs.rm(path)
        return
    if how == "flipped":
        content[len(content) // 2] ^= 1
    else:
        del content[len(content) // 2 :]
    store._fs.pipe_file(path, bytes(content))


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
@pytest.mark.parametrize("what", ["object", "manifest"])
def test_the_state_before_a_damaged_one_is_used(store, tmp_path, what, how):
    write(tmp_path / "run", a="first " * 10, same="s")
    writer = Mirror(store, tmp_path / "run", None, 0)
    writer.push()
    write(tmp_path / "run", a="second " * 10)
    writer.push()
    sha256 = files.sha256_file(tmp_path / "run" / "a")
    damage(store, f"objects/{sha256}" if what == "object" else "manifests/00000002.json", how)
    warnings: list[str] = []
    assert pulled(store, tmp_path / "copy", warnings)["a"] == "first " * 10
    assert len(warnings) == (0 if (what, how) == ("manifest", "missing") else 1)


def test_without_a_complete_state_nothing_is_used(store, tmp_path):
    write(tmp_path / "run", a="first")
    Mirror(store, tmp_path / "run", None, 0).push()
    damage(store, f"objects/{files.sha256_file(tmp_path / 'run' / 'a')}", "flipped")
    with pytest.raises(CheckpointError, match=f"no state of {URL} is complete"):
        pulled(store, tmp_path / "copy")
    assert read(tmp_path / "copy") == {}


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", "a/../../out", "lock", ".hidden", "a/.b", "a\\b", "a//b", "", "./a", "a\0b"]
)
def test_names_that_lead_out_of_the_directory_are_refused(store, tmp_path, name):
    entry: files.Entry = {"bytes": 1, "sha256": hashlib.sha256(b"1").hexdigest()}
    store.create(f"objects/{entry['sha256']}", b"1")
    store.create("manifests/00000001.json", Snapshot(1, this_process(), 0.0, {name: entry}).render())
    warnings: list[str] = []
    with pytest.raises(CheckpointError):
        pull(store, tmp_path / "copy", warnings.append)
    assert "manifests/00000001.json" in warnings[0]
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "entry",
    [
        {"bytes": -1, "sha256": "0" * 64},
        {"bytes": 1, "sha256": "../../manifests/x"},
        {"bytes": 3, "sha256": hashlib.sha256(b"1").hexdigest()},
        {"bytes": 10**18, "sha256": hashlib.sha256(b"1").hexdigest()},
    ],
)
def test_sizes_and_hashes_that_lie_are_refused(store, tmp_path, entry):
    store.create(f"objects/{hashlib.sha256(b'1').hexdigest()}", b"1")
    store.create("manifests/00000001.json", Snapshot(1, this_process(), 0.0, {"a": entry}).render())
    with pytest.raises(RunError):
        pull(store, tmp_path / "copy", lambda text: None)
    assert not (tmp_path / "copy" / "a").exists()


@pytest.mark.parametrize("when", [1e300, -1.0])
def test_times_that_are_none_are_refused(store, tmp_path, when):
    store.create("manifests/00000001.json", Snapshot(1, this_process(), when, {}).render())
    with pytest.raises(CheckpointError, match="no state"):
        pull(store, tmp_path / "copy", lambda text: None)


def test_a_huge_manifest_is_not_read(store, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_run, "LARGEST_MANIFEST", 10)
    write(tmp_path / "run", a="1")
    Mirror(store, tmp_path / "run", None, 0).push()
    warnings: list[str] = []
    with pytest.raises(CheckpointError):
        pull(store, tmp_path / "copy", warnings.append)
    assert "larger than 10 bytes" in warnings[0]


def test_the_first_of_two_writers_stops_when_the_second_takes_over(store, faults, tmp_path):
    write(tmp_path / "one", a="1")
    first = Mirror(store, tmp_path / "one", None, 0)
    base = first.push()
    write(tmp_path / "two", a="1")
    second = Mirror(store, tmp_path / "two", base, 1)
    second.claim()
    write(tmp_path / "one", a="of the first")
    faults.calls.clear()
    with pytest.raises(TakenOver, match=r"was continued by process .* on host .*: this process stops"):
        first.push()
    assert "put_file" not in faults.calls
    first.finish()  # says nothing more
    for number in range(4):  # also after the number of the first is free again
        write(tmp_path / "two", a=f"of the second {number}")
        second.push()
        with pytest.raises(TakenOver):
            first.push()
    assert pulled(store, tmp_path / "copy") == {"a": "of the second 3"}


def test_of_two_that_write_the_same_number_one_is_refused(store, faults, tmp_path):
    base = Mirror(store, tmp_path / "one", None, 0).claim()
    writers = []
    for name in ("one", "two"):
        write(tmp_path / name, a=name)
        writers.append(Mirror(store, tmp_path / name, base, 1))
    done = []

    def other_is_faster(name: str, number: int) -> None:
        if name == "pipe_file" and not done:
            done.append(True)
            writers[1].push()

    faults.fail = other_is_faster
    with pytest.raises(TakenOver):
        writers[0].push()
    assert pulled(store, tmp_path / "copy") == {"a": "two"}


def test_an_unreachable_store_is_said_once_and_mirrored_later(store, faults, tmp_path):
    write(tmp_path / "run", a="1")
    writer, said = Mirror(store, tmp_path / "run", None, 0), []
    faults.fail = lambda name, number: ConnectionError("no route")
    writer.update(said.append)
    writer.update(said.append)
    assert len(said) == 1
    assert "is mirrored later" in said[0]
    with pytest.raises(RunError, match=f"no route.*{tmp_path / 'run'}.*fidec train --resume {URL}"):
        writer.finish()
    faults.fail = lambda name, number: None
    writer.update(said.append)
    assert "written again" in said[1]
    assert pulled(store, tmp_path / "copy") == {"a": "1"}


def test_credentials_that_expire_do_not_stop_the_run(store, faults, tmp_path):
    write(tmp_path / "run", a="1")
    writer, said = Mirror(store, tmp_path / "run", None, 0), []
    faults.fail = lambda name, number: PermissionError("The provided token has expired")
    writer.update(said.append)
    assert "token has expired" in said[0]
    with pytest.raises(RunError, match="Mirror it with"):
        writer.finish()


def test_local_copies_are_cached_by_their_manifest(faults, tmp_path):
    write(tmp_path / "run", **{"run.json": "{}", "policy_m": "1", "checkpoints_00000001_s": "big", "tb_e": "t"})
    store = Store(URL)
    writer = Mirror(store, tmp_path / "run", None, 0)
    writer.push()
    copy = staging.local_run(f"{URL}/")
    assert read(copy) == {"run.json": "{}", "policy/m": "1"}
    assert copy.name == "x"
    write(copy, report="added")
    faults.calls.clear()
    assert staging.local_run(Path(URL)) == copy
    assert faults.calls.count("cat_file") == 1  # the manifest
    assert (copy / "report").exists()
    assert staging.local_run(f"{URL}/policy") == copy / "policy"
    assert "checkpoints/00000001/s" in read(staging.local_run(URL, whole=True))
    write(tmp_path / "run", policy_m="2")
    writer.push()
    assert (staging.local_run(URL) / "policy" / "m").read_text() == "2"
    assert staging.local_run("runs/local") == Path("runs/local")


def test_a_url_without_a_run_says_so(faults):
    with pytest.raises(RunError, match="there is no run at memory://bucket/nothing"):
        staging.local_run("memory://bucket/nothing")
    with ExitStack() as stack, pytest.raises(RunError, match="there is no run at memory://bucket/nothing"):
        staging.stage_existing("memory://bucket/nothing", stack)


def test_a_run_continues_from_the_newest_state(faults, tmp_path, monkeypatch):
    with ExitStack() as stack:
        first = staging.stage_new(URL, False, stack)
        write(first.directory, **{"run.json": "{}", "checkpoints_1": "1"})
        first.push()
        write(first.directory, checkpoints_2="not mirrored yet")
        with pytest.raises(BusyError):
            staging.stage_existing(URL, stack)
    with ExitStack() as stack:  # on this machine: what is here is newer
        again = staging.stage_existing(URL, stack)
        assert (again.directory / "checkpoints" / "2").exists()
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "other"))
    with ExitStack() as stack:  # on another machine
        other = staging.stage_existing(URL, stack)
        assert read(other.directory) == {"run.json": "{}", "checkpoints/1": "1"}
        write(other.directory, checkpoints_3="of the other")
        other.push()
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "stage"))
    with ExitStack() as stack:  # on the first again: the other one was the last writer
        back = staging.stage_existing(URL, stack)
        assert read(back.directory).keys() == {"run.json", "checkpoints/1", "checkpoints/3"}


def test_a_new_run_does_not_replace_another(faults, tmp_path):
    with ExitStack() as stack:
        first = staging.stage_new(URL, False, stack)
    with ExitStack() as stack:  # the first has not trained
        first = staging.stage_new(URL, False, stack)
        write(first.directory, **{"run.json": "{}", "policy_m": "1"})
        first.push()
    with ExitStack() as stack, pytest.raises(RunError, match=f"holds a run already. Continue it with --resume {URL}"):
        staging.stage_new(URL, False, stack)
    with ExitStack() as stack:
        staging.stage_new(URL, True, stack)
    assert (staging.local_run(URL) / "policy" / "m").exists()  # until the new run has its first state
