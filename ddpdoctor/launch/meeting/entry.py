"""How a party reaches the store in which all meet: it hosts it or dials it, as torchrun would."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from ddpdoctor.evidence import HostMatch, Link, PortProbe
from ddpdoctor.gather.deadline import call_within
from ddpdoctor.gather.network.ports import probe_port
from ddpdoctor.launch.meeting.addresses import matches_this_machine, own_names
from ddpdoctor.launch.meeting.store import CONNECT_LIMIT_S, DIAL_LIMIT_S, open_store, serve_store
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.wire import EventWriter, word_exception

REDIAL_S = 0.2
"""Seconds between two attempts at a port on which nothing listens yet."""

_OWN = {"host_matches": "node", "links": "source", "ports": "node"}
"""The field in which a row names this node."""


class Entry:
    """The way of one party to the store.

    Args:
        plan: As it was before this party knew its number.
        writer: Told what is waited for.
        say_limit: Returns how long the wait was in fact, and what ended it.
    """

    def __init__(self, plan: Plan, writer: EventWriter, say_limit: Callable[[], str]) -> None:
        self._plan = plan
        self._writer = writer
        self._say_limit = say_limit
        self._server: TCPStore | None = None
        self.is_host = False
        """This party serves the store."""
        self.is_first = False
        """The rendezvous endpoint is on this machine, and nothing else numbers the nodes."""
        self._early: list[tuple[str, Any]] = []
        """Rows from before this node knew its number."""

    def open(self, deadline: float) -> PrefixStore | str:
        """Open the store as torchrun would; return it, or why not."""
        launch = self._plan.launch
        host, port = launch.master_addr or "127.0.0.1", launch.master_port or 0
        self.is_host = self._hosts_store(host)
        error = self._serve(host, port, deadline) if self.is_host else self._reach(host, port, deadline)
        if error is not None or self._server is None:
            return error or "not connected"
        return PrefixStore(f"ddpdoctor/{launch.rdzv_id}", self._server)

    def write_rows(self, node: int, host: int) -> None:
        """Write down what was seen on the way.

        Args:
            node: Number of this one.
            host: Number of the node whose store it is.
        """
        for kind, row in self._early:
            known = dataclasses.replace(row, **{_OWN[kind]: node})
            self._writer.emit(kind, dataclasses.replace(known, target=host) if kind == "links" else known)

    def _hosts_store(self, host: str) -> bool:
        """Decide who hosts as torch does: by node rank, or by comparing names for c10d."""
        plan = self._plan
        if plan.external:
            return plan.party == 0 and not plan.agent_store
        if plan.launch.rdzv_backend == "static":
            return plan.party == 0
        matches = matches_this_machine(host)
        endpoint = plan.launch.rdzv_endpoint or host
        self._early.append(("host_matches", HostMatch(plan.node, endpoint, matches, own_names())))
        self.is_first = matches and not plan.placed  # also when the port turns out to be taken
        return matches

    def _serve(self, host: str, port: int, deadline: float) -> str | None:
        limit = max(DIAL_LIMIT_S, deadline - time.monotonic())
        try:
            self._server = call_within(limit, lambda: serve_store(host, port))
            return None
        except Exception as problem:  # torch raises RuntimeError, DistNetworkError and ValueError here
            text = word_exception(problem)
        probe = probe_port(self._plan.node, host, port)
        if probe.status == "unassignable":
            return f"this node hosts the store, but {host} is not one of its addresses ({probe.error})"
        if self._plan.launch.rdzv_backend == "c10d" and probe.status == "taken":
            # As torch does: another process of this launch on this machine may host it already.
            self.is_host = False
            try:
                self._server = open_store(host, port, min(limit, CONNECT_LIMIT_S))
                return None
            except Exception:
                text = f"cannot listen on port {port}: taken"
        if probe.status != "free":
            self._early.append(("ports", probe))
        return text

    def _reach(self, host: str, port: int, deadline: float) -> str | None:
        while True:
            error = self._wait_for_port(host, port, deadline)
            if error is not None:
                return error
            limit = max(1.0, min(CONNECT_LIMIT_S, deadline - time.monotonic()))
            try:
                self._server = open_store(host, port, limit)
                return None
            except ConnectionRefusedError as problem:
                return f"{host}:{port}: {_word_error(problem)}"
            except TimeoutError:  # of another program, or of a store whose process is stopped or starved
                status, text = (
                    "silent",
                    f"the process listening there has not answered within {self._say_limit()}",
                )
            except Exception as problem:
                text = (
                    "the process listening there does not answer like torch's store "
                    f"({word_exception(problem)})"
                )
                status = "foreign"
            if status == "foreign" or time.monotonic() >= deadline:
                self._early.append(("ports", PortProbe(self._plan.node, port, status, host, text)))
                return f"{host}:{port}: {text}"

    def _wait_for_port(self, host: str, port: int, deadline: float) -> str | None:
        """Dial the rendezvous port until somebody listens, and note how the last attempt went."""
        plan = self._plan
        self._writer.write("note", text=f"waiting for {host}:{port} to listen")
        while True:
            limit = max(0.5, min(DIAL_LIMIT_S, deadline - time.monotonic()))
            begun = time.monotonic()
            try:
                socket.create_connection((host, port), timeout=limit).close()
                link = Link(plan.node, 0, "rendezvous", True, host, port, time.monotonic() - begun)
            except OSError as problem:
                link = Link(plan.node, 0, "rendezvous", False, host, port, error=_word_error(problem))
            if link.ok or time.monotonic() >= deadline:
                if (plan.leads and not plan.external) or not link.ok:
                    self._early.append(("links", link))
                return None if link.ok else f"{host}:{port}: {link.error}"
            time.sleep(REDIAL_S)


def _word_error(problem: OSError) -> str:
    return problem.strerror or str(problem) or type(problem).__name__
