"""
Strict fakes of the providers' APIs: loopback servers that refuse what the real services refuse.

    with ProviderFake("anthropic", [Answer(calls=(FunctionCall("look", {"path": "a"}),)), Answer(text="done")]) as fake:
        client = anthropic.Anthropic(base_url=fake.base_url, api_key="any")
        ...
        assert not fake.refused

    ProviderFake                   the server: what it answers, what it received
    Answer, FunctionCall               what the model says
    Failure, Reply, Disconnect, Stall, Silence, StreamFailure, html_page, redirect, malformed_json
                                   what can happen instead
    openai_responses, openai_chat, anthropic, gemini
                                   the rules alone: check_request, check_count, check_messages return a Problem or None

What each holds a request to is listed at the head of its module, with where it goes beyond the service. The rules need
the provider's SDK, whose types they are; those of Gemini need none.
"""

from minutebook.testing.fakes import anthropic, gemini, openai_chat, openai_responses
from minutebook.testing.fakes.answers import (
    Answer,
    Disconnect,
    Failure,
    FunctionCall,
    Line,
    Reply,
    Silence,
    Stall,
    StreamFailure,
    html_page,
    malformed_json,
    redirect,
)
from minutebook.testing.fakes.dialect import Problem
from minutebook.testing.fakes.seals import Seal
from minutebook.testing.fakes.server import ProviderFake, Received, Script

__all__ = [
    "Answer",
    "Disconnect",
    "Failure",
    "FunctionCall",
    "Line",
    "Problem",
    "ProviderFake",
    "Received",
    "Reply",
    "Script",
    "Seal",
    "Silence",
    "Stall",
    "StreamFailure",
    "anthropic",
    "gemini",
    "html_page",
    "malformed_json",
    "openai_chat",
    "openai_responses",
    "redirect",
]
