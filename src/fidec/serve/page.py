"""The page at /: shapes, latency, the monitor, and a form that asks the policy.

It is one static file. All that it shows comes from /metadata and /act and is set as text, never as HTML. Its script
and its style are allowed by their hashes, and it may reach nothing but this server.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

HTML = files("fidec.serve").joinpath("page.html").read_text(encoding="utf-8")


def _hash(tag: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", HTML, re.DOTALL)
    assert match is not None
    return "'sha256-" + base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
