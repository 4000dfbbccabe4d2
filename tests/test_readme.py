"""
The README keeps its word: its code runs, and the tests and documents that it names are there.

Pages for people who come from another library have blocks with that library's name, `before=` and `with=`. They run
with the python of `.venv-peers`, which `make test` fills, and skip with a reason where it is not there.

`python -m tests.test_readme` writes the consoles of all documents anew where what they show has changed.
"""

import asyncio
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from inspect import signature
from itertools import takewhile
from pathlib import Path
from string import Template
from typing import Any, get_args, get_type_hints

import httpx2
import openai
import pytest

import minutebook
from minutebook import Conversation, MemoryStore, Outcome, WindowLimits, errors
from minutebook.cli.app import app
from minutebook.stores.journal import JournalStore
from minutebook.stores.urls import SCHEMES
from minutebook.testing import Answer, FunctionCall, ProviderFake

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICE = re.compile(r"^```python service\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(pattern: re.Pattern[str]) -> list[object]:
    return [
        pytest.param(*match.groups(), id=f"{relative(path)}-{position}")
        for path in DOCUMENTS
        for position, match in enumerate(pattern.finditer(path.read_text()))
    ]


def is_store(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, JournalStore) and value is not JournalStore


def said(code: str, folder: Path, python: str | Path = sys.executable) -> str:
    """What a block prints; one that fails fails the test."""
    folder.chmod(0o700)
    run = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, code + run.stderr
    return run.stdout


@pytest.mark.parametrize("code", blocks(BLOCK))
def test_documented_code_runs(code: str, tmp_path: Path) -> None:
    """A block marked `python` runs as it stands, in an empty private folder, with no key and no network."""
    said(code, tmp_path)


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if BLOCK.search(path.read_text())], ids=relative)
def test_documented_code_runs_in_one_folder_and_again(path: Path, tmp_path: Path) -> None:
    """Whoever tries a page from top to bottom, and then once more, trips over nothing that a block left behind."""
    for code in [*BLOCK.findall(path.read_text())] * 2:
        said(code, tmp_path)


TYPED = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("guide.md", "tutorial.md", "walkthrough.md"))]
TYPED += [ROOT / "docs" / "coming-from" / f"{name}.md" for name in ("engine-history", "tinycrew", "touba-sdk")]
"""The pages of which a reader's editor checks the code as it is typed in; others have blocks of other libraries."""
WRITTEN = re.compile(r"^```python (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WRONG = "from minutebook.sync import MemoryStore\n\nMemoryStore().remember()\n"


def test_b11_documented_code_and_examples_satisfy_a_type_checker(tmp_path: Path) -> None:
    """Pyright as editors run it, over all blocks and examples; and it is the planted fault alone that it finds."""
    for path in TYPED:
        text = path.read_text()
        folder = tmp_path / path.stem
        folder.mkdir()
        for block in BLOCK.finditer(text):
            (folder / f"line_{text[: block.start()].count(chr(10)) + 2}.py").write_text(block[1])
        for name, code in WRITTEN.findall(text):
            (folder / name).write_text(code)
    for path in ROOT.glob("examples/*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "planted.py").write_text(WRONG)
    found = {"extraPaths": [str(ROOT / "src")], "executionEnvironments": [{"root": path.stem} for path in TYPED]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(found))
    pyright = [str(Path(sys.executable).with_name("pyright")), "-p", str(tmp_path), "--pythonpath", sys.executable]
    told = subprocess.run(pyright, capture_output=True, text=True, timeout=200).stdout
    errors = [line.strip() for line in told.splitlines() if " - error: " in line]
    assert len(errors) == 1, told
    assert errors[0].startswith(f"{tmp_path / 'planted.py'}:3:")


STORES = sorted(name for name in minutebook.__all__ if is_store(getattr(minutebook, name)))


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_b02_whoever_lists_the_stores_lists_all_of_them(path: Path) -> None:
    """B2: a row or a paragraph with the first and the last has those between; and no store that there is is denied."""
    text = path.read_text()
    for part in re.split(r"\n\n|\n(?=[|-])", BLOCK.sub("", text)):
        if "`MemoryStore`" in part and "`HostStore`" in part:
            assert [name for name in STORES if f"`{name}`" not in part] == [], part
    denied = " ".join(re.findall(r"no stores? (?:for|in|on)[^.;]*", " ".join(text.split()))).lower()
    assert not [scheme for scheme in (*SCHEMES, "postgres") if re.search(rf"\b{re.escape(scheme)}\b", denied)], denied


NEEDED = re.compile(r"^\s*(?:import|from) (openai|anthropic|psycopg|redis)\b", re.MULTILINE)


@pytest.mark.parametrize("path", TYPED, ids=relative)
def test_a_section_names_the_extra_that_its_code_needs(path: Path) -> None:
    """Whoever copies a block learns what to install right there, not from the error."""
    for section in re.split(r"^(?=## )", path.read_text(), flags=re.MULTILINE):
        needed = {name for block in BLOCK.findall(section) for name in NEEDED.findall(block)}
        assert [name for name in needed if f"[{name}]" not in section] == [], section.partition("\n")[0]


PEERS = ROOT / ".venv-peers" / "bin" / "python"
PEER = re.compile(r"^```python with=([\w-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAIR = re.compile(
    r"^```python before=([\w-]+)\n(.*?)^```$(?:(?!^```).)*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
"""What a program says in another library, and the block after it, which says the same in this one."""
INSTALLED = "import importlib.metadata as found; print(*(one.name for one in found.distributions()))"


@functools.cache
def peers() -> frozenset[str]:
    """The distributions that the peers' python has; none without it."""
    return frozenset(said(INSTALLED, ROOT / "tests", PEERS).split()) if PEERS.exists() else frozenset()


def python_with(peer: str) -> Path:
    if peer not in peers():
        pytest.skip(f"{peer} is not in .venv-peers, so what its page says is not tested; `make .stamps/peers` says why")
    return PEERS


@pytest.mark.parametrize(("peer", "code"), blocks(PEER))
def test_documented_code_of_a_peer_runs(peer: str, code: str, tmp_path: Path) -> None:
    """A block `with=` another library runs as it stands, with that library itself, with no key and no network."""
    said(code, tmp_path, python_with(peer))


@pytest.mark.parametrize(("peer", "before", "after"), blocks(PAIR))
def test_documented_code_says_what_it_said_in_the_peer(peer: str, before: str, after: str, tmp_path: Path) -> None:
    """A block `before=` and the one after it print the same: the result of a change is what it was."""
    assert said(before, tmp_path, python_with(peer)) == said(after, tmp_path) != ""


def test_each_before_has_its_after() -> None:
    """No block `before=` stands alone, or is followed by anything else than what it became."""
    for path in DOCUMENTS:
        text = path.read_text()
        assert len(PAIR.findall(text)) == text.count("```python before="), relative(path)


NAMES = """
import importlib, inspect, sys

def known(name):
    path, _, parameter = name.removesuffix("=)").partition("(")
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
            break
        except ModuleNotFoundError:
            continue
    else:
        return False
    for part in parts[cut:]:
        if part in getattr(found, "__annotations__", ()) or part in getattr(found, "model_fields", ()):
            break
        try:
            found = getattr(found, part)
        except ImportError:  # it is there, and wants an extra that is not
            break
        except AttributeError:
            return False
    return not parameter or parameter in inspect.signature(found).parameters

print(*(name for name in sys.argv[1:] if not known(name)))
"""
"""Prints those of its arguments, `a.module.name.member` or `a.module.name(parameter=)`, that lead to nothing."""
DOTTED = r"`({}[\w.]+(?:\(\w+=\))?)`"


def unknown(names: list[str], python: str | Path = sys.executable) -> list[str]:
    run = subprocess.run([python, "-c", NAMES, *names], capture_output=True, text=True, timeout=120, check=True)
    return run.stdout.split()


PAGES = [path for path in DOCUMENTS if path.parent.name == "coming-from"]


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_the_pages_name_what_is_there(path: Path) -> None:
    """A table of names has this library's in its right column, as `minutebook.sync` has them; each is there."""
    rows = re.findall(r"^\| .* \| (.*) \|$", path.read_text(), re.MULTILINE)
    ours = re.findall(DOTTED.format("[A-Za-z]"), " ".join(rows))
    assert unknown([f"minutebook.sync.{name}" for name in ours]) == []


@pytest.mark.parametrize("path", [path for path in PAGES if PEER.search(path.read_text())], ids=relative)
def test_the_pages_name_what_their_peer_has(path: Path) -> None:
    """A name that begins with a module of the peer is one of the peer's, in the version that is installed."""
    text = path.read_text()
    modules = re.search(r"^Names here begin with ((?:`[\w.]+`(?: and )?)+)\.", text, re.MULTILINE)
    assert modules, "the page says how its peer's names begin"
    prefixes = re.findall(r"`([\w.]+)`", modules[1])
    theirs = [name for prefix in prefixes for name in re.findall(DOTTED.format(re.escape(prefix)), text)]
    peer = python_with(PEER.findall(text)[0][0])
    assert theirs
    assert unknown(theirs, peer) == []


@pytest.mark.parametrize(
    ("name", "noticed"),
    [
        ("minutebook.Conversation.turn", False),
        ("minutebook.Conversation(limits=)", False),
        ("minutebook.WindowLimits.low_water", False),
        ("minutebook.Conversation.forget", True),
        ("minutebook.Conversation(limit=)", True),
        ("no_such_module.name", True),
    ],
)
def test_a_name_that_leads_nowhere_is_noticed(name: str, noticed: bool) -> None:
    """The look-up can fail: in a member, in a parameter, and in a module."""
    assert unknown([name]) == [name] * noticed


def test_a_before_that_says_something_else_is_noticed(tmp_path: Path) -> None:
    """The comparison can fail, and a before whose after is missing is none."""
    page = "```python before=a-peer\nprint(1)\n```\n\nAnd then:\n\n```python\nprint({})\n```\n"
    for number, same in ((1, True), (2, False)):
        ((_, before, after),) = PAIR.findall(page.format(number))
        assert (said(before, tmp_path) == said(after, tmp_path)) is same
    assert PAIR.findall(page.replace("```python\n", "```python with=a-peer\n")) == []


@pytest.mark.parametrize("code", blocks(SERVICE))
def test_d01_d28_the_documented_program_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that asks a provider runs as it stands, with a key and a strict fake where the service would be."""
    (tmp_path / ".private-state").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    answers = [
        Answer(calls=(FunctionCall("look_up_order", {"order_number": "ORD-42445"}),)),
        Answer(text='{"output": "It was shipped."}'),
    ]
    scope: dict[str, Any] = {}
    exec(f"async def block():\n{re.sub('^', '    ', code, flags=re.MULTILINE)}\n    return outcome, store", scope)

    async def run() -> Any:
        outcome, store = await scope["block"]()
        await store.close()
        return outcome

    with ProviderFake("openai-chat", answers) as service:
        monkeypatch.setenv("OPENAI_BASE_URL", service.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "of-the-test")
        outcome = asyncio.run(run())
    assert (outcome.output, outcome.calls, service.refused) == ("It was shipped.", 1, ())


LOOP = re.compile(r"^```python async\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks(LOOP))
def test_c1_the_documented_loop_runs_with_the_official_client(code: str) -> None:
    """The loop stands as it is in an `async def`, with the real client over a transport that answers as OpenAI does."""
    answers = [
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}]},
        {"content": "On Tuesday."},
    ]
    asked: list[list[dict[str, object]]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content)["messages"])
        message = {"role": "assistant", "content": None, **answers[len(asked) - 1]}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
        return httpx2.Response(
            200, json={**body, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        )

    async def run_tool(call: object) -> str:
        return f"found by {type(call).__name__}"

    scope: dict[str, object] = {
        "MODEL": "m",
        "TOOLS": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
        "SYSTEM": {"role": "system", "content": "You help."},
        "run_tool": run_tool,
        "client": openai.AsyncOpenAI(
            api_key="k", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)), max_retries=0
        ),
    }

    async def run() -> list[str]:
        async with MemoryStore() as store:
            scope["conversation"] = conversation = Conversation(store, "order-48213", format="openai-chat")
            exec(f"async def loop():\n{re.sub('^', '    ', code, flags=re.MULTILINE)}", scope)
            await scope["loop"]()  # type: ignore[operator]
            return [str(message["role"]) for message in await conversation.window()]

    assert asyncio.run(run()) == ["user", "assistant", "tool", "assistant"]
    assert [message["role"] for message in asked[1]] == ["system", "user", "assistant", "tool"]


STORY = re.compile(r"^```(?:python (?P<file>\w+\.py)|console)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"python": [sys.executable], "minutebook": [sys.executable, "-m", "minutebook"]}
VARIES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b[\d,]+ ms\b|\b[0-9a-f]{32,}\b")
"""What a console shows that is another at each run: times, milliseconds, and hexadecimal numbers from 32 digits on."""


def typed(line: str, folder: Path, environment: dict[str, str]) -> str:
    """What a terminal shows after a command: variables, `export` and `NAME=value command` as in a shell, no more."""
    words = [Template(word).safe_substitute(environment) for word in shlex.split(line)]
    if words[0] == "export":
        environment.update(word.split("=", 1) for word in words[1:])
        return ""
    given = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
    program, *arguments = words[len(given) :]
    ran = subprocess.run(
        [*PROGRAMS.get(program, [program]), *arguments],
        cwd=folder,
        env=environment | given,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    shown = "\n".join(line.rstrip() for line in ran.stdout.splitlines()).strip("\n")
    return f"{shown}\n" * bool(shown) + "Killed\n" * (ran.returncode == -signal.SIGKILL)


def replayed(text: str, folder: Path) -> str:
    """The document with its consoles as they are when its files are written and its commands run, in their order."""
    private = ("OPENAI_", "ANTHROPIC_", "MINUTEBOOK_", "COLUMNS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(private)}

    def block(match: re.Match[str]) -> str:
        if match["file"]:
            (folder / match["file"]).write_text(match["body"])
            return match[0]
        lines = [line for line in match["body"].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{line}\n" + typed(line[2:], folder, environment) for line in lines) + "```"

    return STORY.sub(block, text)


def masked(text: str) -> list[str]:
    return VARIES.sub("…", text).splitlines()


STORIES = [path for path in DOCUMENTS if "```console\n" in path.read_text()]


@pytest.mark.parametrize("path", STORIES, ids=relative)
def test_documented_consoles_show_what_the_commands_say(path: Path, tmp_path: Path) -> None:
    """A page with consoles is one story in one private folder: what it shows is what its commands print."""
    tmp_path.chmod(0o700)
    assert masked(replayed(path.read_text(), tmp_path)) == masked(path.read_text())


@pytest.mark.parametrize(
    ("shown", "noticed"),
    [("2 on 2026-01-02 03:04:05", False), ("3 on 2026-01-02 03:04:05", True), ("2 on Monday", True), ("", True)],
)
def test_a_console_that_shows_something_else_is_noticed(shown: str, noticed: bool, tmp_path: Path) -> None:
    """The comparison can fail, in a number, in the form of what is not compared, and in a line that is not there."""
    code = "```python a.py\nprint(1 + 1, 'on 2026-11-30 00:00:00')\n```\n\n"
    text = f"{code}```console\n$ python a.py\n{shown}\n```\n"
    assert (masked(replayed(text, tmp_path)) != masked(text)) is noticed


def test_named_files_exist() -> None:
    """Each guarantee names the test that proves it; a name that leads nowhere is a claim without a proof."""
    for path in [*DOCUMENTS, *ROOT.glob("examples/*.md")]:
        text = path.read_text()
        named = {ROOT / name for name in re.findall(r"`((?:tests|examples|docs)/[a-z_/.]*)`", text)}
        named |= {path.parent / name for name in re.findall(r"\]\(([A-Za-z0-9_/.-]+)(?:#[a-z-]+)?\)", text)}
        assert sorted(name for name in named if not name.exists()) == [], path.name


def test_b10_the_readme_names_every_command() -> None:
    """What an operator can do is found where one looks first, and nothing is named that is not there."""
    _, _, section = (ROOT / "README.md").read_text().partition("## The command line")
    commands = {command.name or command.callback.__name__: command.callback for command in app.registered_commands}
    shown = " ".join(re.findall(r"minutebook ((?:[a-z-]+ \| )*[a-z-]+)", section)).replace(" | ", " ").split()
    assert set(shown) == commands.keys()
    assert [name for name, command in commands.items() if "json" not in signature(command).parameters] == ["chat"]


def test_d07_the_documents_name_the_windows_defaults() -> None:
    """D7: the numbers of the text are those of the code."""
    limits = WindowLimits()
    assert f"{limits.max_messages} messages and {limits.max_bytes:,} bytes" in (ROOT / "README.md").read_text()
    assert f"messages ({limits.max_messages}) and" in (ROOT / "docs" / "guide.md").read_text()
    assert f"JSON ({limits.max_bytes:,})" in (ROOT / "docs" / "guide.md").read_text()


def test_b11_the_guide_says_of_each_error_whether_to_try_again() -> None:
    """Each error that can be raised has one line, or the line of its kind; each kind of ending is named."""
    guide = (ROOT / "docs" / "guide.md").read_text()
    _, _, section = guide.partition("## Errors, and which to try again")
    rows = re.findall(r"^\| ([^|]*`[A-Z].*?) \|", section.partition("## ")[0], re.MULTILINE)
    single = [name for row in rows if not row.startswith("every ") for name in re.findall(r"`(\w+)`", row)]
    kinds = tuple(getattr(errors, row.split("`")[1]) for row in rows if row.startswith("every "))
    raised = {name for name in errors.__all__ if not getattr(errors, name).__subclasses__()}
    assert len(single) == len({*single})
    assert {*single} <= raised
    assert {name for name in raised - {*single} if not issubclass(getattr(errors, name), kinds)} == set()
    ends = re.findall(r"^\| `([a-z_]+)` \| `", guide, re.MULTILINE)
    assert {*ends} == {*get_args(get_type_hints(Outcome)["kind"])}


if __name__ == "__main__":
    for story in STORIES:
        with tempfile.TemporaryDirectory() as directory:
            found = replayed(story.read_text(), Path(directory))
        if masked(found) != masked(story.read_text()):
            story.write_text(found)
