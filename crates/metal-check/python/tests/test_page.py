import pathlib
import re

PAGE = pathlib.Path(__file__).parents[4] / "docs/metal-check.md"


def test_the_programs_of_the_page_run(capsys):
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for program in programs:
        exec(program, {})
    assert "array([2, 2, 2], dtype=float32) {'doubled': 1}" in capsys.readouterr().out
