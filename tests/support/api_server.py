"""An API server on the loopback that has no objects but Leases: for processes that watch, lead and end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

Json = dict[str, Any]


class ApiServer:
    """Every request is remembered, and may be refused by the plural of its kind."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """(method, path, query)."""
        self.refusals: dict[str, int] = {}
        """Plural → status; for discovery the path."""
        self.leases: dict[str, Json] = {}
        self._version = 0

    def lease(self, holder: str, *, instance: str, name: str = "kvgate-controller", namespaces: str = "*") -> Json:
        """Write a Lease that somebody has just confirmed."""
        annotations = {"kvgate.io/instance": instance, "kvgate.io/namespaces": namespaces}
        metadata = {"name": name, "annotations": annotations}
        return self._stored({"metadata": metadata, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}})

    def _stored(self, lease: Json) -> Json:
        self._version += 1
        lease["metadata"]["resourceVersion"] = str(self._version)
        self.leases[lease["metadata"]["name"]] = lease
        return lease

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.requests.append((request.method, path, query))
        *_, plural, name = ("", *path.split("/"))
        plural = "leases" if plural == "leases" else name
        if status := self.refusals.get(plural) or self.refusals.get(path):
            return web.json_response({"kind": "Status", "message": "as the test says", "code": status}, status=status)
        if plural == "leases":
            return await self._lease(request)
        if query.get("watch"):
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def _lease(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"metadata": {}, "items": list(self.leases.values())})
        lease: Json = json.loads(await request.text())
        before = self.leases.get(lease["metadata"]["name"], {"metadata": {}})
        if lease["metadata"].get("resourceVersion") != before["metadata"].get("resourceVersion"):
            return web.json_response({"kind": "Status", "message": "another version", "code": 409}, status=409)
        return web.json_response(self._stored(lease))


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[ApiServer, str]]:
    """A server, and the kubeconfig for it."""
    server, app = ApiServer(), web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    named = {"name": "a", "context": {"cluster": "a", "user": "a"}, "cluster": {"server": address}, "user": {}}
    lists = {f"{kind}s": [{key: named[key] for key in ("name", kind)}] for kind in ("cluster", "context", "user")}
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump({"current-context": "a", **lists}), encoding="utf-8")
    try:
        yield server, str(kubeconfig)
    finally:
        await runner.cleanup()
