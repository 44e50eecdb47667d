"""Random numbers that belong to a sample, not to the order in which it was drawn.

A generator with a state gives a sample other numbers when the batch, the worker or the number of processes changes,
and has to be saved to resume. Here each number is a hash of what it is for, (seed, epoch, sample, column), so it is the
same wherever and whenever it is asked for. The hash is splitmix64 (Steele, Lea and Flood, 2014), in plain NumPy
integers: no library's release can change the order of a run that is resumed.
"""

import numpy as np

# What the numbers are for. Without this, the step 7 that mixes a batch would share its numbers with the sample 7.
SAMPLES, STEPS, ORDER = range(3)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio: consecutive counters land far apart


def uniforms(seed: int, epoch: int, samples: np.ndarray, count: int, stream: int = SAMPLES) -> np.ndarray:
    """float64 [len(samples), count] in [0, 1): row i depends on (seed, epoch, samples[i]) and the stream alone."""
    rows = _hash(_key(seed, epoch, stream) + np.asarray(samples, np.int64).astype(np.uint64) * _GOLDEN)
    columns = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    # The upper 53 bits: as many as a float64 holds, so that nothing rounds up to 1.
    return (_hash(rows[:, None] + columns) >> np.uint64(11)) * 2.0**-53


def permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    """int64 [n]: the range of n, shuffled anew in each epoch."""
    return np.argsort(_hash(_key(seed, epoch, ORDER) + np.arange(n, dtype=np.uint64) * _GOLDEN), kind="stable")


def _key(*words: int) -> np.ndarray:
    """uint64 [1] from whole numbers of any size and sign."""
    key = np.zeros(1, np.uint64)
    for word in words:
        key = _hash(key + np.uint64(word % 2**64) + _GOLDEN)
    return key


def _hash(counters: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: each of the 64 bits put in moves about half of those that come out."""
    counters = (counters ^ (counters >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    counters = (counters ^ (counters >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return counters ^ (counters >> np.uint64(31))
