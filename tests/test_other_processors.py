"""What notebooks store holds on other processors, and with other numbers of threads."""

import pytest
from test_nbval_catches import PATHS, course, nbval

__all__ = ["course"]
MEASURED = ["06_transformer", "07_fast_heads"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "threads"), [("default", "1"), ("avx2", "2"), ("avx512", "1")]
)
def test_outputs_hold_on_other_processors_and_numbers_of_threads(course, capability, threads):
    settings = {"OMP_NUM_THREADS": threads, "ATEN_CPU_CAPABILITY": capability}
    stems = [path.stem for path in PATHS]
    if threads != "1":  # beside other tests, what trains or measures would crawl
        stems = [stem for stem in stems if stem not in MEASURED]
    passed, said = nbval(course, stems, OMP_WAIT_POLICY="PASSIVE", **settings)
    assert passed, said
