"""A small bookshop with a real REST API, so that a first run has something to call.

It lives in memory and in this process, under /demo, and starts again from the same eight books.
Its definition is `bookshop.yaml` beside this file, read like any other definition. There is a
bound on the number of books, and an endpoint with a large answer to show `read_result`.
"""

from __future__ import annotations

import itertools
from importlib import resources
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.config.connection import OpenApiConnection

ShortText = Annotated[str, Meta(min_length=1, max_length=200)]


class Book(Struct, frozen=True, forbid_unknown_fields=True):
    id: int
    title: ShortText
    author: ShortText
    genre: Literal["fiction", "history", "science", "poetry", "children"] = "fiction"
    year: Annotated[int, Meta(ge=0, le=3000)] = 2000
    price: Annotated[float, Meta(ge=0, lt=1_000_000)] = 10.0
    stock: Annotated[int, Meta(ge=0, lt=1_000_000)] = 1


FIRST_BOOKS = (
    Book(1, "The Left Hand of Darkness", "Ursula K. Le Guin", "fiction", 1969, 9.99, 12),
    Book(2, "The Periodic Table", "Primo Levi", "science", 1975, 11.5, 4),
    Book(3, "SPQR", "Mary Beard", "history", 2015, 14.0, 7),
    Book(4, "The Gruffalo", "Julia Donaldson", "children", 1999, 7.25, 30),
    Book(5, "Invisible Cities", "Italo Calvino", "fiction", 1972, 10.0, 3),
    Book(6, "Map", "Wislawa Szymborska", "poetry", 2015, 16.75, 2),
    Book(7, "A Brief History of Time", "Stephen Hawking", "science", 1988, 12.0, 9),
    Book(8, "The Guns of August", "Barbara Tuchman", "history", 1962, 13.4, 5),
)


def definition() -> bytes:
    """The bookshop's OpenAPI definition."""
    return resources.files(__package__).joinpath("bookshop.yaml").read_bytes()


def demo_connection(own_url: str) -> OpenApiConnection:
    """The bookshop as a connection like any other."""
    return OpenApiConnection(
        kind="openapi",
        display_name="Book shop",
        spec=definition().decode(),
        base_url=f"{own_url}/demo",
    )


def bookshop() -> Starlette:
    """A fresh bookshop as an ASGI application."""
    shop = Bookshop()
    return Starlette(
        routes=[
            Route("/books", shop.list_books),
            Route("/books", shop.add_book, methods=["POST"]),
            Route("/books/search", shop.search_books),
            Route("/books/{id:int}", shop.get_book),
            Route("/books/{id:int}", shop.update_book, methods=["PATCH"]),
            Route("/books/{id:int}", shop.delete_book, methods=["DELETE"]),
            Route("/catalogue", shop.export_catalogue),
            Route("/openapi.yaml", _get_definition),
        ],
        exception_handlers={HTTPException: _answer_error, ValidationError: _answer_error},
    )


class Bookshop:
    """The books, and the operations on them."""

    max_books = 1000

    def __init__(self) -> None:
        self._books = {book.id: book for book in FIRST_BOOKS}
        self._ids = itertools.count(len(FIRST_BOOKS) + 1)

    async def list_books(self, request: Request) -> Response:
        genre = request.query_params.get("genre")
        books = [b for b in self._books.values() if genre in (None, b.genre)]
        limit = _read_number(request, "limit", 20, 1, 100)
        offset = _read_number(request, "offset", 0, 0, self.max_books)
        page = [asdict(book) for book in books[offset : offset + limit]]
        return JSONResponse({"books": page, "total": len(books)})

    async def search_books(self, request: Request) -> Response:
        words = request.query_params.get("q", "").lower().split()
        matches = [
            asdict(book)
            for book in self._books.values()
            if all(word in f"{book.title} {book.author}".lower() for word in words)
        ]
        return JSONResponse({"books": matches, "total": len(matches)})

    async def get_book(self, request: Request) -> Response:
        return JSONResponse(asdict(self._requested_book(request)))

    async def add_book(self, request: Request) -> Response:
        if len(self._books) >= self.max_books:
            raise HTTPException(409, f"the shop is full: {self.max_books} books")
        book = convert(await _read_fields(request) | {"id": next(self._ids)}, Book)
        self._books[book.id] = book
        return JSONResponse(asdict(book), status_code=201)

    async def update_book(self, request: Request) -> Response:
        book = self._requested_book(request)
        book = convert(asdict(book) | await _read_fields(request) | {"id": book.id}, Book)
        self._books[book.id] = book
        return JSONResponse(asdict(book))

    async def delete_book(self, request: Request) -> Response:
        del self._books[self._requested_book(request).id]
        return Response(status_code=204)

    async def export_catalogue(self, request: Request) -> Response:
        """Every book with many made-up reviews: larger than a tool's answer may be."""
        books = list(self._books.values())
        reviews = [
            {"book": books[n % len(books)].title, "stars": n % 5 + 1, "text": f"Review {n}. " * 8}
            for n in range(4000 if books else 0)
        ]
        return JSONResponse({"books": [asdict(b) for b in books], "reviews": reviews})

    def _requested_book(self, request: Request) -> Book:
        book = self._books.get(request.path_params["id"])
        if book is None:
            raise HTTPException(404, f"there is no book {request.path_params['id']}")
        return book


async def _get_definition(request: Request) -> Response:
    return Response(definition(), media_type="application/yaml")


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"message": error.detail}, status_code=error.status_code)
    return JSONResponse({"message": str(error)}, status_code=422)


def _read_number(request: Request, name: str, default: int, low: int, high: int) -> int:
    try:
        value = int(request.query_params.get(name, default))
    except ValueError:
        raise HTTPException(400, f"{name} must be a whole number") from None
    return min(max(value, low), high)


async def _read_fields(request: Request) -> dict[str, object]:
    """The book's fields in the request's body."""
    try:
        body = await request.json()
    except ValueError:
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be an object")
    return body
