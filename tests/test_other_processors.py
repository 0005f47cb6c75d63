"""What notebooks store holds on other processors, and with other numbers of threads."""

import nbformat
import pytest
from test_nbval_catches import PATHS, course, nbval, without_training

__all__ = ["course"]
LONG = ["06_transformer", "07_fast_heads"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "onednn", "threads"),
    [("default", "SSE41", "1"), ("avx2", "AVX2", "2"), ("avx512", "AVX512_CORE", "1")],
)
def test_outputs_hold_on_other_processors_and_numbers_of_threads(
    course, capability, onednn, threads
):
    settings = {"ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": onednn}
    stems = [path.stem for path in PATHS]
    if threads != "1":  # beside other tests, the longest ones would crawl
        stems = [stem for stem in stems if stem not in LONG]
    if capability != "default":  # once is enough for what trains
        for path in sorted((course / "notebooks").glob("*.ipynb")):
            notebook = nbformat.read(path, as_version=4)
            notebook.cells = without_training(path)
            nbformat.write(notebook, path)
    passed, said = nbval(
        course, stems, OMP_NUM_THREADS=threads, OMP_WAIT_POLICY="PASSIVE", **settings
    )
    assert passed, said
