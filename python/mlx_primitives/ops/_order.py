"""The order of additions in a row of a product or of attention."""

import contextlib
from typing import Iterator

from .. import _library
from ._common import named

_ROW_ORDERS = {"by_count": 0, "tokens": 1, "prompt": 2}


@contextlib.contextmanager
def row_order(order: str) -> Iterator[None]:
    """A context in which this thread's products and attention add up every row in the named order.

    "tokens" is the order for a single row, and "prompt" is the order for prompts. "by_count" uses the order for a
    single row for up to eight rows, and the order for prompts for more. With "tokens" or "prompt", no bit of a row
    depends on the rows beside it.
    """
    before = _library.set_row_order(named("row_order", "order", _ROW_ORDERS, order))
    try:
        yield
    finally:
        _library.set_row_order(before)
