"""The grading API: requests in, JSON out, nothing graded or decided here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from posttrain.core.errors import PosttrainError, StorageFull
from posttrain.core.grading import SubmitRequest
from posttrain.grading import answers
from posttrain.grading.answers import Json, RulesNote
from posttrain.grading.gate import App, Gate
from posttrain.grading.grader import Grader, Ticket
from posttrain.grading.requests import Refused, parse_submit

logger = logging.getLogger(__name__)

_COPIERS = 8
"""Threads for `submit`: more than may be copying at a time, so that refusals don't wait for copies."""
_ENDPOINTS = "POST /submit, GET /submissions, /submissions/{id}, /time, /health, /rules"
_ANY_REFUSAL = (403, 404, 405, 413, 503)
_SUBMIT_REFUSALS = (400, 410, 422, 429, 507)


@dataclass(frozen=True)
class Service:
    """What the application speaks about."""

    grader: Grader
    rules: RulesNote
    task: str
    workspace: str
    nonce: str
    """Known to the harness alone, so that it can tell its own server from a squatter on the port."""


def build_app(service: Service, *, secret: str) -> App:
    """The whole server as one ASGI application, below `/run/<secret>`."""

    def refusal(error: str, hint: str) -> Json:
        return {"error": error, "hint": hint, "rules": service.rules.brief()}

    return Gate(build_api(service), secret=secret, refusal=refusal)


def build_api(service: Service) -> FastAPI:
    """The endpoints, without what stands before them."""
    api = FastAPI(
        title="posttrain grading", docs_url=None, redoc_url=None, responses=_described(_ANY_REFUSAL)
    )
    api.router.redirect_slashes = False
    _add_error_handlers(api, service)
    _add_submit(api, service)
    _add_reading(api, service)
    return api


def _answer(
    service: Service, content: Mapping[str, Any], *, status: int = 200, **headers: str
) -> JSONResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({**content, "rules": service.rules.brief()}, status_code=status, headers=named)


def _described(statuses: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": "JSON with error and hint"} for status in statuses}


def _add_submit(api: FastAPI, service: Service) -> None:
    grader = service.grader
    copiers = anyio.CapacityLimiter(_COPIERS)
    body = {"content": {"application/json": {"schema": SubmitRequest.model_json_schema()}}, "required": True}
    described = _described(_SUBMIT_REFUSALS) | {202: {"description": "queued"}}

    @api.post("/submit", responses=described, openapi_extra={"requestBody": body})
    async def submit(request: Request) -> JSONResponse:
        """Hand in a checkpoint folder; by default the answer is its grade."""
        grader.refuse_if_closed()
        asked = parse_submit(await request.body())
        ticket = await anyio.to_thread.run_sync(grader.submit, asked, limiter=copiers)
        fault = await _wait(ticket) if asked.wait else None
        where = grader.standing(ticket.submission_id)
        assert where is not None
        content = answers.standing(where, grader)
        if fault is not None:
            return _answer(service, content | answers.fault(fault), status=503)
        return _answer(service, content, status=answers.status_code(where))


async def _wait(ticket: Ticket) -> PosttrainError | None:
    """Until the verdict is there, without holding a thread; or why there will be none in this run.

    A client that hangs up ends its own waiting and nothing else.
    """
    try:
        await asyncio.shield(asyncio.wrap_future(ticket.ended))
    except PosttrainError as error:
        return error
    return None


def _add_reading(api: FastAPI, service: Service) -> None:
    grader = service.grader

    @api.get("/submissions")
    async def submissions() -> JSONResponse:
        """Every submission so far and where it stands."""
        told = [answers.standing(where, grader) for where in grader.standings()]
        return _answer(service, {"submissions": told})

    @api.get("/submissions/{number}")
    async def submission(number: str) -> JSONResponse:
        """Where one submission stands, then its grade."""
        where = grader.standing(int(number)) if number.isdecimal() and len(number) < 10 else None
        if where is None:
            raise HTTPException(404, f"no submission {number[:20]!r}; there are {grader.total}")
        return _answer(service, answers.standing(where, grader))

    @api.get("/time")
    async def clock() -> JSONResponse:
        """run_meta.json with the server's now and what is left."""
        meta = grader.exports.meta.model_dump()
        remaining = round(grader.budget.remaining())
        return _answer(service, {**meta, "now": int(time.time()), "remaining": remaining})

    @api.get("/health")
    async def health() -> JSONResponse:
        """Whether the server lives, and the state of its queue."""
        return _answer(
            service,
            {
                "status": "ok" if grader.failure is None else "failed",
                "task": service.task,
                "workspace": service.workspace,
                "available_gpus": list(grader.terms.gpus),
                "queue": grader.queue_length,
                "nonce": service.nonce,
            },
        )

    @api.get("/rules")
    async def rules() -> JSONResponse:
        """RULES.md."""
        return _answer(service, {"text": service.rules.text, "hash": service.rules.hash})

    @api.post("/set_baseline", status_code=403)
    async def set_baseline() -> JSONResponse:
        """The ancestor let agents tell their own baseline."""
        raise HTTPException(403, "the baseline is measured by the lab and cannot be set")


def _add_error_handlers(api: FastAPI, service: Service) -> None:
    @api.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> JSONResponse:
        content: Json = {"error": error.reason, "hint": error.hint}
        if error.field is not None:
            content["field"] = error.field
        if error.field == "gpu":
            content["available_gpus"] = list(service.grader.terms.gpus)
        retry = {} if error.retry_after_s is None else {"Retry_After": str(error.retry_after_s)}
        return _answer(service, content, status=error.status, **retry)

    @api.exception_handler(PosttrainError)
    async def failed(_request: Request, error: PosttrainError) -> JSONResponse:
        status = answers.OUT_OF_SPACE if isinstance(error, StorageFull) else 503
        return _answer(service, {"status": "error", "score": None} | answers.fault(error), status=status)

    @api.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> JSONResponse:
        content = {"error": str(error.detail), "hint": f"There is {_ENDPOINTS}."}
        return _answer(service, content, status=error.status_code, **(dict(error.headers or {})))

    @api.exception_handler(Exception)
    async def bug(_request: Request, error: Exception) -> JSONResponse:
        logger.error("unexpected error in the grading server", exc_info=error)
        content = {"error": "unexpected error in the grading server", "hint": "Try again; the lab has a log."}
        return _answer(service, content, status=503)
