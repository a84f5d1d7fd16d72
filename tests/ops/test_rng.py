"""Golden draws of the counter-based generator (`model.md` 12.4)."""

import pytest

from ninfer_nb.ops.rng import uniform24

GOLDEN = [
    (0, 0, 0, 10946269),
    (0, 19, 0, 674951),
    (0, 19, 1, 778313),
    (0, 20, 1, 10243299),
    (0, 20, 2, 8779038),
    (0, 20, 3, 6096973),
    (0, 20, 4, 255477),
    (123, 1048575, 1, 7127251),
    (2**64 - 1, 7, 2, 14527954),
]


@pytest.mark.parametrize(("seed", "position", "purpose", "bits"), GOLDEN)
def test_golden(seed, position, purpose, bits):
    assert uniform24(seed, position, purpose) == bits
