"""What the C library does with a freed tensor: keep it for the next one, or give it back at once.

In: which of the two matters.  Out: settings of glibc's malloc, which TensorFlow takes a CPU's
tensors from; other C libraries are left alone.

By default every large tensor comes from the system page by page and goes back there, a tenth of a
small model's step; and those below 32 MB leave gaps behind, up to twice the memory in use.
"""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8  # as in malloc.h
GIVE_BACK_BYTES = 2 ** 20
NEVER = 2 ** 31 - 1


def keep_freed_memory():
    """For speed: freed memory stays with the process."""
    set_malloc({MMAP_MAX: 0, TRIM_THRESHOLD: NEVER, ARENA_MAX: 1})


def return_freed_memory():
    """For a low peak: every tensor of a megabyte or more goes back to the system when freed."""
    set_malloc({MMAP_THRESHOLD: GIVE_BACK_BYTES, TRIM_THRESHOLD: GIVE_BACK_BYTES})


def set_malloc(settings):
    """Calls mallopt(number, value) for each setting; returns whether there is such a function."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no glibc
        return False
    return all([mallopt(number, value) for number, value in settings.items()])
