"""The order of rows."""

import contextlib
from typing import Iterator

from .. import _library
from ._common import named

_ROW_ORDERS = {"by_count": 0, "tokens": 1, "prompt": 2}


@contextlib.contextmanager
def row_order(order: str) -> Iterator[None]:
    """Within it, rows of products and of attention that this thread builds are added in one order.

    "tokens" is the order of one row alone, "prompt" that of prompts, and "by_count" takes that of tokens for up
    to eight rows. No bit of a row then depends on the rows beside it.
    """
    before = _library.set_row_order(named("row_order", "order", _ROW_ORDERS, order))
    try:
        yield
    finally:
        _library.set_row_order(before)
