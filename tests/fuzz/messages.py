"""Several pieces in one input: each preceded by its length as a varint, as in files of rollouts."""

from collections.abc import Iterable, Sequence


def join_pieces(pieces: Iterable[bytes]) -> bytes:
    """One input of several pieces."""
    joined = bytearray()
    for piece in pieces:
        length = len(piece)
        while length > 0x7F:
            joined.append(length & 0x7F | 0x80)
            length >>= 7
        joined.append(length)
        joined += piece
    return bytes(joined)


def split_pieces(joined: bytes, *, most: int = 64) -> Sequence[bytes]:
    """The pieces of an input, whatever it is: what is cut off is a shorter piece, what is too much is left out."""
    pieces: list[bytes] = []
    position = 0
    while position < len(joined) and len(pieces) < most:
        length = shift = 0
        while position < len(joined) and shift < 35:
            byte = joined[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        pieces.append(joined[position : position + length])
        position += length
    return pieces
