"""The address of the API server and kvgate's identity, found in the way of kubectl, or else in the way of a pod."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from kvgate.cluster.errors import NoConfiguration

RequestObserver = Callable[[str, str], None]
"""Called with (verb, code) once per request; the code is `error` where no answer came."""
USER_AGENT = "kvgate-controller"

_READING = ("GET", "HEAD", "OPTIONS")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_KEEPALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 20_000),  # milliseconds
)
"""Options with which the kernel ends, within 25 s, a connection that a load balancer dropped silently. Not every system has all of them."""


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Load from --kubeconfig, $KUBECONFIG, ~/.kube/config or the pod's ServiceAccount, in this order. Raises NoConfiguration."""
    configuration = Configuration()
    usual = Path.home() / ".kube" / "config"
    path = kubeconfig or os.environ.get("KUBECONFIG") or (str(usual) if usual.is_file() else None)
    try:
        if path is not None:
            await config.load_kube_config(config_file=path, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError, yaml.YAMLError, ValueError, KeyError, TypeError) as error:
        source = path or "no kubeconfig, and not in a cluster"
        raise NoConfiguration(f"{source}: {error}; give --kubeconfig or set KUBECONFIG") from error
    return configuration


async def watch_session(
    configuration: Configuration, observe: RequestObserver, *, may_write: Callable[[], bool]
) -> aiohttp.ClientSession:
    """Return a session for long watches. It is authenticated and counted, and it soon notices a dead connection."""
    token = await configuration.get_api_key_with_prefix("BearerToken")
    if token and " " not in token:
        token = f"Bearer {token}"
    tls = RESTClientObject(configuration).ssl_context  # as the client itself has it
    connector = aiohttp.TCPConnector(limit=0, ssl=tls, socket_factory=_keepalive_socket)
    return aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": USER_AGENT, **({"Authorization": token} if token else {})},
        trace_configs=[request_trace(observe, may_write)],
        trust_env=True,
    )


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    for level, name, value in _KEEPALIVE:
        with suppress(AttributeError):
            made.setsockopt(level, getattr(socket, name), value)
    return made


class MayNotWrite(aiohttp.ClientConnectionError):
    """The gate is shut. This is a connection error, so that kopf tries again later as it does in an outage."""


def request_trace(observe: RequestObserver, may_write: Callable[[], bool]) -> aiohttp.TraceConfig:
    """Return a trace that counts every request of a session, kopf's watches included, and lets none write while the gate is shut.

    The gate is checked when a request is made, and again before its first byte leaves, because it may have waited for a connection.
    """
    trace = aiohttp.TraceConfig()

    async def gate(_: aiohttp.ClientSession, __: SimpleNamespace, request: Any) -> None:
        if request.method not in _READING and not may_write():
            raise MayNotWrite("this process does not hold the Lease, so it writes nothing")

    async def ended(
        _: aiohttp.ClientSession, __: SimpleNamespace,
        end: aiohttp.TraceRequestEndParams | aiohttp.TraceRequestExceptionParams,
    ) -> None:  # fmt: skip
        verb = "watch" if "watch" in end.url.query else _VERBS.get(end.method, end.method.lower())
        observe(verb, str(end.response.status) if isinstance(end, aiohttp.TraceRequestEndParams) else "error")

    trace.on_request_start.append(gate)
    trace.on_request_headers_sent.append(gate)
    trace.on_request_end.append(ended)
    trace.on_request_exception.append(ended)
    return trace
