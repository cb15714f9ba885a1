"""Every script in examples/ runs to its end in an empty directory."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parents[2].glob("examples/*.py"))
# The others train longer. README's page has what own_arrays shows, tests/envs/test_own_env.py what own_environment
# does.
QUICK = ("deploy",)


@pytest.mark.usefixtures("compile_cache")
@pytest.mark.parametrize(
    "script", [pytest.param(p, id=p.stem, marks=() if p.stem in QUICK else pytest.mark.slow) for p in SCRIPTS]
)
def test_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
