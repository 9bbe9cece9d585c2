import pytest
from compiling import compiled

pytest.importorskip("triton")
LAYERS = {"_norm", "_norm_back", "_mlp", "_gelu_back", "_branch", "_branch_back", "_sum_parts"}
ATTENTION = {"_gather", "_gather_back", "_merge", "_scatter", "_scatter_back", "_mix", "_mix_back"}


def test_every_kernel_of_a_layer_passes_the_real_compiler(tmp_path):
    """Triton's interpreter lets pass what a compiler refuses: a variable, say, that changes its type."""
    (names,) = compiled("compile_run.py", "bfloat16", "float32", cache=tmp_path)
    assert set(names.split()) >= ATTENTION | LAYERS
