"""Words and tables as TeX has them."""

from __future__ import annotations

from collections.abc import Sequence

_SPECIAL = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "–": "--",
}


def escape(text: str) -> str:
    """Text as TeX prints it."""
    return "".join(_SPECIAL.get(char, char) for char in text)


def tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A `tabular` with the rules of the package booktabs; the cells are TeX already."""
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule"]
    lines += [" & ".join(header) + r" \\", r"\midrule", *(" & ".join(row) + r" \\" for row in rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])
