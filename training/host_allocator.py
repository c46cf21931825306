"""What the C library does with a freed tensor: keep it for the next one, or give it back at once.

In: which of the two matters.  Out: settings of glibc's malloc, which TensorFlow takes a CPU's
tensors from; other C libraries are left alone.

By default every large tensor comes from the system page by page and goes back there, a tenth of a
small model's step; and those below 32 MB leave gaps behind, as much as the memory in use.
"""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8  # as in malloc.h
GIVE_BACK_BYTES = 2 ** 22
NEVER = -1  # turns trimming off
MANY = 65536  # malloc's own limit of pieces that come from the system one by one


FOR_SPEED = {MMAP_MAX: 0, TRIM_THRESHOLD: NEVER, ARENA_MAX: 1}
FOR_LOW_PEAK = {MMAP_MAX: MANY, MMAP_THRESHOLD: GIVE_BACK_BYTES, TRIM_THRESHOLD: GIVE_BACK_BYTES,
                ARENA_MAX: 1}


def keep_freed_memory(keep):
    """Sets malloc to keep freed memory, or to give back every tensor of 4 MB or more.

    Returns:
      bool, whether the C library could be told so.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no glibc
        return False
    return all([mallopt(number, value) for number, value in
                (FOR_SPEED if keep else FOR_LOW_PEAK).items()])
