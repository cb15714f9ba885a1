"""A missing optional package is reported with the extra that installs it."""

from __future__ import annotations

import json
import sys

import pytest

from fidec.errors import ConfigError
from fidec.extras import require


def test_an_installed_package_is_imported():
    assert require("json", "any") is json


def test_a_missing_package_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogbench", None)
    with pytest.raises(ConfigError, match=r"^task X needs the package ogbench: pip install 'fidec\[ogbench\]'$"):
        require("ogbench", "ogbench", "task X")
