"""The command ``gt``: its table, its help, and what it says about wrong words."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest

from benchmarks.core.environment import program
from gt.__main__ import COMMANDS, help_text, run_command
from gt.launch.command_name import command_name, make_parser
from gt.scripts import checkout
from gt.version import VERSION
from tests.support.processes import LONG, ROOT, environment


@pytest.fixture(autouse=True)
def _own_words(monkeypatch):
    """A command puts its name into ``sys.argv``."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))


def gt(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gt", *words]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LONG)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_main_and_a_help(name, capsys):
    main = importlib.import_module(COMMANDS[name].module).main
    assert list(inspect.signature(main).parameters) == ["argv"]
    with pytest.raises(SystemExit) as end:
        run_command([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: gt {name} ")
    assert "`" not in text
    assert "python -m" not in text


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])  # its options are a benchmark's
def test_a_wrong_option_is_refused(name, capsys):
    with pytest.raises(SystemExit) as end:
        run_command([name, "--no-such-option"])
    assert end.value.code == 2
    assert f"usage: gt {name} " in capsys.readouterr().err


def test_the_python_form_has_its_own_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/top.py"])
    assert command_name("gt.scripts.top") == "gt.scripts.top"
    assert make_parser("gt.scripts.top", None).prog == "python -m gt.scripts.top"


def test_an_error_has_the_name_of_the_command(capsys):
    assert run_command(["top", "--interval", "0"]) == 2
    assert capsys.readouterr().err == "gt top: --interval must be from 0.05 to 3600 seconds\n"


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_the_help_is_aligned(word, capsys):
    assert run_command([word]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.partition("commands:\n")[2].splitlines() if line]
    assert [row.split()[0] for row in rows] == list(COMMANDS)
    assert {row.index(COMMANDS[row.split()[0]].summary) for row in rows} == {2 + max(map(len, COMMANDS)) + 2}
    assert max(map(len, text.splitlines())) <= 80


def test_the_page_lists_every_command():
    rows = re.findall(r"^\| `gt ([\w-]+)` \|", (ROOT / "docs/command.md").read_text(), re.M)
    assert rows == list(COMMANDS)


def test_no_command(capsys):
    assert run_command([]) == 2
    assert capsys.readouterr().err == help_text() + "\n"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("wroker", "there is no command 'wroker'; did you mean 'worker'? (gt --help)"),
        ("serve", "there is no command 'serve'; did you mean 'server'? (gt --help)"),
        ("", f"there is no command ''; the commands are {', '.join(COMMANDS)} (gt --help)"),
    ],
)
def test_a_wrong_command(word, said, capsys):
    assert run_command([word]) == 2
    assert capsys.readouterr().err == f"gt: {said}\n"


def test_the_process_ends_with_the_exit_code():
    assert gt("--version").stdout == f"GT {VERSION}\n"
    wrong = gt("pipeline", "show", "no-such-schedule")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("gt pipeline: ")


def test_only_a_worker_ends_at_once():
    """Other commands run what is registered for the exit of a program."""
    assert [name for name, command in COMMANDS.items() if command.ends_at_once] == ["worker"]


def test_the_help_loads_no_tensor_library():
    script = (
        "import sys, gt.__main__ as m; m.run_command(['help']); print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "unbuffered"), [(["bench"], ""), (["--help"], "1"), (["--help"], ""), (["doctor", "--no-trials"], "1")]
)
def test_a_closed_pipe_is_no_error(words, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gt", *words]
    with os.fdopen(writer, "w") as pipe:
        result = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LONG,
        )
    assert (result.stderr, result.returncode) == ("", 0)


# -- programs of the repository ------------------------------------------------------------


def test_bench_lists_the_benchmarks(capsys):
    assert run_command(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("control_plane ") for line in lines)
    assert all(len(line.split()) > 1 for line in lines)
    assert {line.split()[0] for line in lines} <= {path.stem for path in (ROOT / "benchmarks").glob("*.py")}


def test_bench_lists_programs_only(capsys):
    """Not the modules beside them, nor the processes that they start."""
    assert run_command(["bench"]) == 0
    names = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {"chaos", "events", "torch_device"} <= names
    assert not any("child" in name or "system" in name or name == "bare" for name in names)


def test_bench_runs_a_benchmark():
    result = gt("bench", "control_plane", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "--quick" in result.stdout


def test_bench_names_those_there_are(capsys):
    assert run_command(["bench", "nope"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gt bench: there is no benchmark 'nope'; the benchmarks are auto_shard_benchmark, ")
    assert run_command(["bench", "reprot"]) == 2
    said = capsys.readouterr().err
    assert said == "gt bench: there is no benchmark 'reprot'; did you mean 'report'? (gt bench)\n"


@pytest.mark.parametrize("name", ["compare", "machine"])
def test_a_wrong_option_of_a_benchmark_has_the_name_of_the_command(name):
    said = gt("bench", name, "--no-such-option").stderr
    assert said.startswith(f"usage: gt bench {name} ")
    assert f"\ngt bench {name}: error: " in said


def test_a_benchmark_has_its_own_name_without_the_command(monkeypatch):
    assert program("/somewhere/compare.py") == "compare.py"
    monkeypatch.setenv("BENCH_COMMAND", "gt bench machine")  # which runs others
    assert (program("machine.py"), program("report.py")) == ("gt bench machine", "report.py")


@pytest.mark.parametrize(("name", "folder"), [("bench", "benchmarks"), ("demo", "examples")])
def test_an_installed_package_says_that_it_needs_a_clone(name, folder, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    assert run_command([name]) == 1
    expected = f"the folder {folder}/ is not in the installed package: run this in a clone of the repository"
    assert capsys.readouterr().err == f"gt {name}: {expected}\n"


def test_the_demo_is_the_one_of_the_examples(monkeypatch):
    replaced = []
    monkeypatch.setattr(os, "execve", lambda *arguments: replaced.append(arguments))
    run_command(["demo"])
    ((python, command, variables),) = replaced
    assert command == [python, str(ROOT / "examples" / "demo.py")]
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
