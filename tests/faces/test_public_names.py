"""The public names: what `from minutebook import …` offers, and what importing it does not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import minutebook
import minutebook.sync
from minutebook import errors

HEAVY = {"sqlite3", "asyncio", "openai", "anthropic", "httpx2", "typer", "rich", "ssl", "msgspec"}


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `code`."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_all_is_the_namespace() -> None:
    """Every listed name is there, and nothing public is there that is not listed."""
    for name in minutebook.__all__:
        assert getattr(minutebook, name) is not None
    modules = {name for name in vars(minutebook) if f"minutebook.{name}" in sys.modules}
    public = {name for name in dir(minutebook) if not name.startswith("_")} - modules
    assert public - {"TYPE_CHECKING", "annotations"} == set(minutebook.__all__) - {"__version__"}
    assert minutebook.__all__ == sorted(minutebook.__all__)


PROMISED = {
    *("Conversation", "ConversationKey", "WindowLimits", "HistoryOptions", "ContextWindow"),
    *("MemoryStore", "SQLiteStore", "PostgresStore", "RedisStore", "open_store"),
    *("OpenAIDecisionProvider", "OpenAIChatDecisionProvider", "AnthropicDecisionProvider", "GeminiDecisionProvider"),
    *("ContextGuardTransport", "Program", "capability", "Runtime", "Agent", "AgentEvent"),
    *("Engine", "HistoryConfig", "HistoryManager", "create_history_manager", "create_in_memory_store"),
    *("create_sqlite_decision_history_store", "HistoryEntry", "LLMContextMessage", "HistoryStore"),
    "ConversationMessage",
}
"""The names that the specification lists, beside every error."""


def test_b11_every_promised_name_is_public() -> None:
    """In either colour, all of the specification's list."""
    assert PROMISED - set(minutebook.__all__) == set()
    for module in (minutebook, minutebook.sync):
        assert {name for name in PROMISED if not hasattr(module, name)} == set(), module.__name__


def test_a4_a_message_has_the_published_fields_and_roles() -> None:
    """A4: a role of four, a content and maybe a name; that is what an agent's history takes and gives."""
    message = minutebook.ConversationMessage
    assert (message.__required_keys__, message.__optional_keys__) == ({"role", "content"}, {"name"})
    roles = get_args(get_type_hints(message)["role"])
    assert set(roles) == {"system", "user", "assistant", "developer"}
    annotated = {
        name: [part for part in minutebook.Agent.__dict__[name].__annotations__.values() if "Message" in part]
        for name in ("add_to_history", "set_history", "get_history")
    }
    assert annotated == {
        "add_to_history": ["ConversationMessage"],
        "set_history": ["Sequence[ConversationMessage]"],
        "get_history": ["list[ConversationMessage]"],
    }
    assert minutebook.sync.ConversationMessage is message


def test_every_error_is_public() -> None:
    """The whole tree, under the names that people search for."""
    assert set(errors.__all__) <= set(minutebook.__all__)
    assert all(getattr(minutebook, name) is getattr(errors, name) for name in errors.__all__)


def test_a_type_checker_sees_the_same_names() -> None:
    """What is imported for checkers, what is listed and what is loaded name the same objects of the same modules."""
    tree = ast.parse(Path(minutebook.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(seen) | {"__version__"} == set(minutebook.__all__)
    for name, module in seen.items():
        assert getattr(sys.modules[module or ""], name) is getattr(minutebook, name)


def test_b11_a_type_checker_sees_the_same_names_in_sync() -> None:
    """Blocking names come from their own modules there, and every other one is that of `minutebook`."""
    tree = ast.parse(Path(minutebook.sync.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    found = [
        (each.module, alias.name) for each in blocks[0].body if isinstance(each, ast.ImportFrom) for alias in each.names
    ]
    blocking = {name: module for module, name in found if module != "minutebook"}
    assert {name for module, name in found if module == "minutebook"} == set(minutebook.__all__) - {
        "__version__",
        *blocking,
    }
    assert set(blocking) == BLOCKING
    for name, module in blocking.items():
        loaded = getattr(minutebook.sync, name)
        assert getattr(sys.modules[module or ""], name) is loaded


ANNOTATED = {
    "Turn": lambda talk, store: talk.turn("q"),
    "JournalStore": lambda talk, store: store,
    "Window": lambda talk, store: talk.window(),
    "Receipt": lambda talk, store: talk.append([{"role": "user", "content": "q"}]),
    "Exchange": lambda talk, store: talk.last()[0],
    "Entry": lambda talk, store: next(talk.entries()),
    "Header": lambda talk, store: store.header(talk.key),
    "Record": lambda talk, store: store.read(talk.key),
    "Listing": lambda talk, store: store.list()[0],
    "Totals": lambda talk, store: store.totals(),
    "Sent": lambda talk, store: talk.window().sent,
}


def test_b11_what_public_methods_return_has_a_public_name() -> None:
    """So that users can annotate their own functions with it."""
    with minutebook.sync.MemoryStore() as store:
        talk = minutebook.sync.Conversation(store, "c", format="openai-chat")
        talk.append([{"role": "user", "content": "before"}, {"role": "assistant", "content": "yes"}])
        for name, returned in ANNOTATED.items():
            assert isinstance(returned(talk, store), getattr(minutebook.sync, name)), name
    events = {
        kind.__name__ for kind in minutebook.Event.__subclasses__() if kind.__module__ == "minutebook.model.events"
    }
    assert events <= set(minutebook.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """So that `hasattr` and typos behave as in any module."""
    assert not hasattr(minutebook, "CassandraStore")


def test_b11_importing_the_package_loads_nothing() -> None:
    """No driver, SDK or framework; not even what the first conversation needs."""
    assert not loaded_by("import minutebook") & HEAVY


def test_b11_a_conversation_in_ram_loads_no_driver() -> None:
    """A name loads what it needs itself, and no more."""
    loaded = loaded_by(
        "from minutebook import Conversation, MemoryStore; Conversation(MemoryStore(), 'x', format='anthropic')"
    )
    assert not loaded & (HEAVY - {"msgspec"})
    assert not loaded & {"minutebook.stores.hosted", "minutebook.stores.sqlite", "minutebook.decisions"}
    assert not loaded_by("import minutebook.sync") & HEAVY


UNUSED = {
    *("dataclasses", "random", "secrets", "urllib"),
    *("minutebook.continuation", "minutebook.decisions", "minutebook.stores.transfer"),
    *("minutebook.stores.hosted", "minutebook.stores.memory", "minutebook.stores.private_writer"),
}
"""What a conversation on SQLite needs only when somebody exports, collides or counts tokens (figure 11)."""

ON_SQLITE = "import minutebook.conversation, minutebook.stores.sqlite\nfrom minutebook import SQLiteStore, Conversation"


def test_b11_a_conversation_on_sqlite_loads_what_is_used() -> None:
    """B11: what else the library can do costs nothing; the control sees each of these once it is asked for."""
    assert not loaded_by(ON_SQLITE) & UNUSED
    everything = "; ".join(f"import {name}" for name in sorted(UNUSED))
    assert loaded_by(f"{ON_SQLITE}; {everything}") >= UNUSED


BLOCKING = {name for name in minutebook.sync.__all__ if getattr(minutebook.sync, name) is not getattr(minutebook, name)}
"""The names that stand for something else there."""


def test_b11_sync_has_the_same_names() -> None:
    """Whatever holds or drives coroutines has a blocking twin; values and errors are the same for both."""
    values = set(minutebook.__all__) - BLOCKING - {"__version__"}
    assert not {name for name in values if hasattr(getattr(minutebook, name), "__aenter__")}
    assert len(values) > len(BLOCKING) > 0
    for name in BLOCKING:
        assert getattr(minutebook.sync, name).__module__.startswith("minutebook.sync.")


def test_b11_a_star_gives_every_name_in_both_colours() -> None:
    """What can be imported by its name comes with `import *` too, and nothing else does; `dir` lists it."""
    for module in (minutebook, minutebook.sync):
        given: dict[str, object] = {}
        exec(f"from {module.__name__} import *", given)
        public = set(minutebook.__all__) - {"__version__"}
        assert set(given) - {"__builtins__", "__version__"} == public
        assert all(given[name] is getattr(module, name) for name in public)
        assert public <= set(dir(module))
    assert minutebook.sync.__all__ == sorted(minutebook.sync.__all__)
    assert not hasattr(minutebook.sync, "MongoStore")
