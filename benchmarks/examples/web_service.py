"""A FastAPI service whose requests share batches.

    pip install fastapi uvicorn
    BUNDLE=build/demo/bundle uvicorn web_service:app
    curl -d '{"text": "See you at 5 pm."}' -H 'Content-Type: application/json' http://127.0.0.1:8000/translate

Each request is one `submit`, which joins the running batch. `tx-serve` is a complete server that needs no code.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from txport.runtime import InputError, Translator, TxportError

SECONDS = 10.0  # deadline of a request


class Request(BaseModel):
    """The body of a request."""

    text: str = Field(max_length=2_000)


class Response(BaseModel):
    """The translation, and whether the text was truncated."""

    translation: str
    truncated: bool


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the bundle at the start, and answer pending requests at the end."""
    app.state.translator = Translator(os.environ["BUNDLE"])
    yield
    app.state.translator.close()


app = FastAPI(lifespan=lifespan)


@app.post("/translate")
async def translate(request: Request) -> Response:
    """Translate one text."""
    try:
        result = await app.state.translator.submit(request.text, seconds=SECONDS)
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    except TxportError as error:  # too many requests, out of memory, deadline exceeded
        raise HTTPException(503, str(error)) from error
    return Response(translation=result.text, truncated=result.truncated)
