"""The URLs that name stores: one row for each, the same for both colours and every command."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import minutebook
import minutebook.sync
from minutebook.cli.running import check_lasting
from minutebook.errors import InvalidOption
from minutebook.stores.urls import SCHEMES, Scheme, file_of

PASSWORD = "s3cret"


@pytest.fixture
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on a server, which has no file."""
    row = Scheme(form="server://<host>", open=lambda stores, url, namespace: stores.MemoryStore(namespace))
    monkeypatch.setitem(SCHEMES, "server", row)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("faces", [minutebook, minutebook.sync])
def test_b10_a_store_that_is_added_to_the_table_is_open_to_both_colours(faces: Any) -> None:
    """B10: its row makes it of the classes of either; the commands take it, since another process finds it."""
    store = faces.open_store("server://host", namespace="n")
    assert type(store) is faces.MemoryStore
    assert store.namespace == "n"
    check_lasting("server://host")


@pytest.mark.parametrize("faces", [minutebook, minutebook.sync])
def test_b10_the_refusal_of_a_scheme_lists_every_store_that_there_is(faces: Any) -> None:
    """B10: how the URL of each is written, and nothing of the URL that was given but its scheme."""
    with pytest.raises(InvalidOption) as refused:
        faces.open_store(f"oracle://me:{PASSWORD}@host", namespace="n")
    assert all(scheme.form in str(refused.value) for scheme in SCHEMES.values())
    assert "'oracle:'" in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_b10_a_url_is_written_with_the_scheme_that_finds_it() -> None:
    """B10: and a store without a file has none to be looked for."""
    assert all(SCHEMES[scheme.form.partition(":")[0]] is scheme for scheme in SCHEMES.values())
    assert (file_of("sqlite:////a/b"), file_of("memory:")) == ("/a/b", None)


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize(
    ("url", "warned"),
    [
        (f"server://me:{PASSWORD}@host", True),
        (f"server://:{PASSWORD}@host/db", True),
        (f"server://host/db?user=me&password={PASSWORD}", True),
        ("server://me@host:5432/db?x=a:b@c", False),
    ],
)
def test_bad_input_119_a_password_among_the_arguments_is_warned_of(
    url: str, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others can read it there; the variable that keeps it from them is named, and it is not said again."""
    monkeypatch.setattr(sys, "argv", ["minutebook", "list", f"--store={url}"])
    check_lasting(url)
    told = capsys.readouterr().err
    assert ("MINUTEBOOK_STORE" in told) == warned
    assert PASSWORD not in told
    monkeypatch.setattr(sys, "argv", ["minutebook", "list"])
    check_lasting(url)
    assert capsys.readouterr().err == ""
