"""Jobs of the comparison in processes. Whole runs are in tests/cli/test_geometry_cli.py."""

from __future__ import annotations

import pytest

from fidec.errors import RunError
from fidec.geometry import experiment
from fidec.geometry.methods import METHODS


def test_a_job_that_fails_is_named_with_its_reason(tmp_path):
    (tmp_path / "bimodal").mkdir()
    (tmp_path / "bimodal" / "flows.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"bimodal: isotropic: .*flows\.safetensors is not a readable"):
        experiment.run(["bimodal"], tmp_path, seeds=1, methods=["isotropic"], workers=1)


@pytest.mark.parametrize("text", ["{", '{"rows": 3}', '{"rows": [{"kl": []}], "drawn": {}, "samples": []}'])
def test_a_damaged_result_is_named(tmp_path, text):
    (tmp_path / "bimodal").mkdir()
    (tmp_path / "bimodal" / f"{next(iter(METHODS))}.json").write_text(text)
    with pytest.raises(RunError, match=r"bimodal/.*\.json is damaged.*Delete it"):
        experiment.summarise(tmp_path)
