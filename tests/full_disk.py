"""A disk that is full, as this process sees it."""

import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def full_disk() -> Generator[None]:
    """No file of this process takes another byte, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
