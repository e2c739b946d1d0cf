"""The README's Python code runs as it stands and prints what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
# A block of code, and the block of its output right behind it.
SESSIONS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(("code", "output"), SESSIONS)
def test_code_prints_what_the_readme_says(
    code: str, output: str, server_target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(code.replace("unix:logitd.sock", server_target), {})
    assert capsys.readouterr().out == output


def test_every_session_is_found() -> None:
    assert len(SESSIONS) == README.read_text(encoding="utf-8").count("```python") == 4
