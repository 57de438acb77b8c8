"""Commands that come with other packages: found, listed, or said what to install for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from quire.tools.cli import main
from quire.tools.commands import command
from quire.tools.commands.command import COMMANDS, load


@pytest.mark.parametrize("name", COMMANDS)
def test_each_is_found_by_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(load(name).add)
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert COMMANDS[name].help.split(",")[0] in " ".join(capsys.readouterr().out.split())


def test_one_that_is_not_here_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "entry_points", lambda **_: [])
    for name, listed in COMMANDS.items():
        if not listed.package:
            continue
        assert main([name, "llama-3-8b", "--machine", "h100"]) == 1
        error = capsys.readouterr().err
        assert f"pip install 'quire-llm[{listed.package}]'" in error
    with pytest.raises(SystemExit) as end:
        main(["--help"])  # they are listed all the same
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"    {name}" in shown for name in COMMANDS)


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


def test_a_list_of_all_commands_loads_none_of_them() -> None:
    code = (
        "import sys\nfrom quire.tools.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stderr.split())
    assert not loaded & {"numpy", "msgspec", "pydantic", "zmq", "quire.engine.config"}


@pytest.mark.parametrize(("typed", "words"), [
    ("run", "use quire chat MODEL"), ("ls", "use quire models"), ("list", "use quire models"),
    ("ps", "use quire top"), ("rm", "Hugging Face's cache"), ("login", "hf auth login"),
    ("srve", "did you mean serve?"), ("benchmark", "did you mean bench?"),
    ("zzz", "there are serve, generate"),
])  # fmt: skip
def test_a_command_that_is_none_says_what_there_is(
    typed: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([typed, "some/model"])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_every_answer_names_commands_that_there_are() -> None:
    for text in command._OTHERS.values():
        named = re.findall(r"quire (\w+)", text)
        assert set(named) <= COMMANDS.keys() | {"has"}, text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for words in ("scheduling-policy", "fcfs", "doctor", "prefill-replicas"):
        assert words in script
    assert "mamba" not in script  # what changes nothing is not offered
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_bash_completes_commands_flags_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    for line, found in (
        ("quire ser", "serve"),
        ("quire serve --max-model", "--max-model-len"),
        ("quire serve --scheduling-policy f", "fcfs fair"),
    ):
        words = line.split()
        ask = (
            f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
            "complete=$(complete -p quire); function=${complete#*-F }\n"
            f"${{function%% *}} quire {words[-1]} {words[-2]}\n" + 'echo "${COMPREPLY[@]}"'
        )
        run = subprocess.run(["bash"], input=ask, capture_output=True, text=True, check=True)
        assert run.stdout.split() == found.split()
