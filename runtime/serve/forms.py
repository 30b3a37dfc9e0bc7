"""Forms of kind multipart/form-data (RFC 7578), split in one pass: Python's `email` takes minutes for some bodies."""

import re

MOST_PARTS = 100
MOST_HEADERS = 1024  # bytes of a part's headers
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))', re.ASCII | re.IGNORECASE)
_NAME = re.compile(rb';\s*name=(?:"([^"\r\n]*)"|([^\s";,]+))', re.IGNORECASE)
# Encodings that leave a part as it is.
_PLAIN = (b"7bit", b"8bit", b"binary")


def parts_of(body: bytes, content_type: str) -> list[tuple[str, str]]:
    """Name and text of each part, in their order.

    Args:
        body: of the request.
        content_type: its header, which gives the boundary.

    Raises:
        ValueError: the body is not such a form, has more than `MOST_PARTS` parts or `MOST_HEADERS` bytes of headers in
            one, or a part is encoded or not UTF-8.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise ValueError("the content type has no boundary")
    boundary = b"\r\n--" + (found[1] or found[2]).encode()
    # The first piece is before the form; the one that begins with -- ends it.
    pieces = (b"\r\n" + body).split(boundary, MOST_PARTS + 1)[1:]
    parts: list[tuple[str, str]] = []
    for piece in pieces:
        if piece.startswith(b"--"):
            return parts
        parts.append(_part(piece))
    raise ValueError("the form has no end" if len(pieces) <= MOST_PARTS else "the form has too many parts")


def _part(piece: bytes) -> tuple[str, str]:
    end = piece.find(b"\r\n\r\n", 0, MOST_HEADERS)
    padding, _, headers = piece[: max(end, 0)].partition(b"\r\n")
    if end < 0 or padding.strip(b" \t"):
        raise ValueError("a part has no headers, or too many")
    named: dict[bytes, bytes] = {}
    for line in headers.split(b"\r\n"):
        key, _, value = line.partition(b":")
        named[key.strip().lower()] = value.strip()
    if named.get(b"content-transfer-encoding", b"binary").lower() not in _PLAIN:
        raise ValueError("a part is encoded")
    name = _NAME.search(named.get(b"content-disposition", b""))
    if name is None:
        raise ValueError("a part has no name")
    return (name[1] or name[2] or b"").decode(), piece[end + 4 :].decode()
