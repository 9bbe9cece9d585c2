import pytest
from compiling import run_script

pytest.importorskip("triton")
LAYERS = {"_norm", "_norm_back", "_mlp", "_gelu_back", "_branch", "_branch_back", "_sum_parts"}
ATTENTION = {"_gather", "_gather_back", "_merge", "_scatter", "_scatter_back", "_mix", "_mix_back"}


@pytest.mark.slow
def test_every_kernel_of_a_layer_passes_the_real_compiler(tmp_path):
    """The interpreter accepts code that the compiler rejects, such as a variable that changes its type."""
    (names,) = run_script("compile_run.py", "bfloat16", "float32", cache=tmp_path)
    assert set(names.split()) >= ATTENTION | LAYERS
