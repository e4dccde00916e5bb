"""Apps of others with our endpoint in them, for uvicorn and granian to run; `/control` tells and moves its stage."""

import asyncio
import resource
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

import sluicegate
from tests.downstream.http_stage import Stage

PATIENCE = 10
stage = Stage()


def by_user(scope: Any) -> sluicegate.Caller:
    """The caller, as an authenticating app would leave it."""
    return sluicegate.Caller(dict(scope["headers"]).get(b"x-user", b"nobody").decode())


alone = sluicegate.AsgiApp(
    stage.server,
    hosts=["localhost", "127.0.0.1", "MCP.example.com"],
    origins=["https://app.example.com"],
    caller=by_user,
)


async def reset(request: Request) -> JSONResponse:
    """Forget everything that happened."""
    stage.started, stage.cancelled, stage.go = asyncio.Event(), asyncio.Event(), asyncio.Event()
    stage.said = 0
    return JSONResponse("reset")


async def go(request: Request) -> JSONResponse:
    """Let the tool go on."""
    stage.go.set()
    return JSONResponse("gone")


async def wait(request: Request) -> JSONResponse:
    """Answer when it has happened."""
    async with asyncio.timeout(PATIENCE):
        await getattr(stage, request.path_params["event"]).wait()
    return JSONResponse("happened")


async def figures(request: Request) -> JSONResponse:
    """How often the flood has said something, and the KiB that this process has ever had in memory."""
    return JSONResponse({"said": stage.said, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss})


CONTROL = Mount(
    "/control",
    routes=[
        Route("/reset", reset, methods=["POST"]),
        Route("/go", go, methods=["POST"]),
        Route("/wait/{event}", wait),
        Route("/figures", figures),
    ],
)


@asynccontextmanager
async def own_lifespan(app: Starlette) -> AsyncGenerator[None]:
    """A lifespan that has other things to start, too."""
    async with alone:
        yield


in_starlette = Starlette(routes=[CONTROL, Mount("/tools", alone)], lifespan=own_lifespan)
forgotten = Starlette(routes=[CONTROL, Mount("/tools", alone)])

in_fastapi = FastAPI(lifespan=alone.lifespan)
in_fastapi.router.routes.append(CONTROL)
in_fastapi.mount("/tools", alone)
