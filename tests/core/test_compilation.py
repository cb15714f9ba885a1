"""The cache of compiled programs: where it is, what it keeps, and that nothing in it can stop or change a run."""

from __future__ import annotations

import zlib
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from fidec import compilation, dataset_from_arrays, fit
from helpers.runs import fingerprint, random_columns

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_compilation_cache_max_size",
    "jax_enable_compilation_cache",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """No cache in JAX, and FIDEC_COMPILE_CACHE a directory that does not exist yet."""
    before = {name: jax.config.values[name] for name in OPTIONS}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    monkeypatch.setenv(compilation.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "LONG_ENOUGH", 0.0)
    yield tmp_path / "cache"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_the_directory_is_the_user_s_and_can_be_chosen_or_turned_off(cache, monkeypatch, tmp_path):
    directory = compilation.choose().directory
    assert directory is not None
    assert directory.parent == cache
    assert directory.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(compilation.VARIABLE, "")
    assert Path(str(compilation.choose().directory)).parent.name == "compiled"
    monkeypatch.setenv(compilation.VARIABLE, "off")
    assert compilation.choose() == (None, "off (FIDEC_COMPILE_CACHE)")
    compilation.enable()
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_other_instructions_or_cores_have_another_directory(cache, monkeypatch):
    directories = {compilation.choose().directory}
    monkeypatch.setattr(compilation, "usable_cores", lambda: [0, 1, 2, 3, 4])
    directories.add(compilation.choose().directory)
    monkeypatch.setattr(compilation, "_processor", lambda: "flags : sse2")
    directories.add(compilation.choose().directory)
    assert len(directories) == 3


def test_what_the_user_set_in_jax_is_kept(cache):
    jax.config.update("jax_compilation_cache_dir", str(cache / "own"))
    compilation.enable()
    assert jax.config.values["jax_compilation_cache_dir"] == str(cache / "own")
    assert compilation.describe() == f"set in JAX: {cache / 'own'}"
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    compilation.enable()
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_a_program_that_has_just_been_removed_is_not_counted(cache):
    directory = compilation.choose().directory
    assert directory is not None
    (directory / "kept-cache").write_bytes(bytes(300_000))
    (directory / "removed-cache").symlink_to("nowhere")  # it is listed, but has no size
    assert compilation.describe() == f"{directory} (1 programs, 0.3 MB)"


def make_a_file(cache: Path) -> None:
    cache.write_text("not a directory")


def open_to_all(cache: Path) -> None:
    directory = compilation.choose().directory
    assert directory is not None
    directory.chmod(0o777)


def make_read_only(cache: Path) -> None:
    open_to_all(cache)
    next(cache.iterdir()).chmod(0o500)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (make_a_file, "cannot be used"),
        (open_to_all, "other users can write to"),
        (make_read_only, "cannot be written to"),
    ],
)
def test_an_unusable_directory_is_not_used(cache, monkeypatch, spoil, words):
    spoil(cache)
    # The superuser may write everywhere.
    monkeypatch.setattr(compilation.os, "access", lambda path, mode: bool(Path(path).stat().st_mode & 0o200))
    compilation.enable()
    assert jax.config.values["jax_compilation_cache_dir"] is None
    assert words in compilation.describe()


def programs(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*-cache"))


@pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache")
def test_a_run_has_the_same_bits_with_hits_and_with_damaged_programs(cache, tiny, tmp_path):
    """The first run compiles, the second reads all programs, the third finds each of them damaged in some way."""
    dataset = dataset_from_arrays(**random_columns())

    def train(name: str) -> dict[str, str]:
        fit(dataset, tmp_path / name, algo="tiny", steps=30, log_interval=10, batch_size=8, quiet=True)
        (tmp_path / name / "eval.jsonl").touch()
        (tmp_path / name / "episodes.jsonl").touch()
        return fingerprint(tmp_path / name, 30)

    first, kept = train("first"), {path: path.read_bytes() for path in programs(cache)}
    assert any(path.name.startswith("jit_steps") for path in kept)
    assert jax.config.values["jax_compilation_cache_max_size"] == compilation.LARGEST
    assert not jax.config.values["jax_raise_persistent_cache_errors"]
    assert train("second") == first
    assert {path: path.read_bytes() for path in programs(cache)} == kept  # nothing was compiled
    for number, (path, content) in enumerate(kept.items()):
        path.write_bytes([content[: len(content) // 2], b"garbage", zlib.compress(b"\0\0\0\1garbage")][number % 3])
    (cache / "notes").write_text("not a program")
    assert train("third") == first


def test_an_interrupted_write_does_not_close_the_cache(cache):
    """JAX writes the program first and its time of use last. Without the latter it would never write again."""
    directory = compilation.choose().directory
    assert directory is not None
    (directory / "jit_half-cache").write_bytes(b"hal")
    (directory / "jit_whole-cache").write_bytes(b"whole")
    (directory / "jit_whole-atime").write_bytes(b"\0" * 8)
    compilation.enable()
    assert [path.name for path in programs(cache)] == ["jit_whole-cache"]
    jax.jit(lambda x: 3 * x + 1)(2.0)
    assert len(programs(cache)) > 1
