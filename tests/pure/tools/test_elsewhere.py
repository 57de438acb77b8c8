"""Commands that come with other packages: found, listed, or said what to install for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quire.tools.cli import main
from quire.tools.commands import command
from quire.tools.commands.command import ELSEWHERE, load


@pytest.mark.parametrize("name", ELSEWHERE)
def test_each_is_found_by_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = load(name)
    assert (found.name, found.help) == (name, ELSEWHERE[name].help)
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert found.help.split(",")[0] in " ".join(capsys.readouterr().out.split())


def test_one_that_is_not_here_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "entry_points", lambda **_: [])
    for name, elsewhere in ELSEWHERE.items():
        assert main([name, "llama-3-8b", "--machine", "h100"]) == 1
        error = capsys.readouterr().err
        assert f"pip install 'quire[{elsewhere.package}]'" in error
    with pytest.raises(SystemExit) as end:
        main(["--help"])  # they are listed all the same
    assert end.value.code == 0
    listed = capsys.readouterr().out
    assert all(f"    {name}" in listed for name in ELSEWHERE)


def test_a_server_does_not_load_the_others() -> None:
    """Nor does a list of all commands."""
    code = (
        "import sys\nfrom quire.tools.cli import main\n"
        "for argv in (['serve', '--help'], ['--help']):\n"
        "    try: main(argv)\n    except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in run.stderr.split()}
    assert "quire" in loaded
    assert not loaded & {"quire_lab", "quire_cluster"}
