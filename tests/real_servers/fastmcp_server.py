"""A small MCP server of our own on fastmcp, over stdio: a shelf of books."""

from dataclasses import dataclass

from fastmcp import FastMCP
from fastmcp.exceptions import NotFoundError, ToolError
from mcp.types import ToolAnnotations

BOOKS = {
    "1": ("Κήπος", 1921, 214),
    "2": ("Das Gewächshaus", 1954, 388),
    "3": ("庭の本 🌸", 1988, 120),
}
BOOKPLATE = bytes(range(256))
READ_ONLY = ToolAnnotations(readOnlyHint=True)

shelf = FastMCP(
    "shelf",
    version="1.2.3",
    instructions="Look at `shelf://books` first: „wer sucht, der findet“.",
    list_page_size=2,
)


@dataclass
class Reading:
    hours: float
    days: int
    note: str


@shelf.tool(annotations=READ_ONLY)
def lend(reader: str) -> str:
    """Lends the whole shelf to a reader."""
    return f"📚 → {reader} – ausgeliehen, prêté, 貸出中"


@shelf.tool(annotations=READ_ONLY)
def reading_time(pages: int, pages_per_hour: int = 30) -> Reading:
    """Says how long so many pages take."""
    if pages_per_hour < 1:
        raise ToolError("so slowly it takes ∞ hours")
    hours = pages / pages_per_hour
    return Reading(hours=hours, days=1 + int(hours // 2), note=f"{pages} × ⅟{pages_per_hour} h")


@shelf.tool(annotations=READ_ONLY)
def titles() -> list[str]:
    """The titles of all books."""
    return [title for title, _, _ in BOOKS.values()]


@shelf.resource("shelf://books", mime_type="text/plain")
def books() -> str:
    """All books, one a line."""
    return "\n".join(f"{number}: {title} ({year})" for number, (title, year, _) in BOOKS.items())


@shelf.resource("shelf://bookplate", mime_type="application/octet-stream")
def bookplate() -> bytes:
    """Every byte once."""
    return BOOKPLATE


@shelf.resource("shelf://book/{number}", mime_type="application/json")
def book(number: str) -> dict:
    """One book."""
    if number not in BOOKS:
        raise NotFoundError(f"no book {number}")
    title, year, pages = BOOKS[number]
    return {"title": title, "year": year, "pages": pages}


@shelf.prompt
def review(title: str, language: str = "English") -> str:
    """Asks for a review."""
    return f"Please review „{title}“ in {language}, in three sentences…"


if __name__ == "__main__":
    # The banner would ask the package registry for a newer version.
    shelf.run(show_banner=False)
