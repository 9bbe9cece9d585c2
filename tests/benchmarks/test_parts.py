from benchmarks.kernel_times import kernel_kind, sum_by_kind


def test_kernels_are_classified_by_their_names():
    names = {
        "_norm_back": "norm",
        "_gather": "attention",
        "_mlp_back": "MLP",
        "sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16": "convolution",
        "sm90_xmma_dgrad_implicit_gemm_bf16bf16": "convolution",
        "nvjet_sm90_tss_64x32_64x16_1x2_h_bz_splitK_NTT": "matrix products",
        "void cublasLt::splitKreduce_kernel<32, 16>": "matrix products",
        "void at::native::CatArrayBatchedCopy_vectorized": "optimiser",
        "_weight_back": "sums of gradients",
        "something new": "other",
    }
    assert {name: kernel_kind(name) for name in names} == names


def test_parts_are_of_one_call_with_the_longest_first():
    kernels = [("_norm", 10.0, 4), ("_mlp", 60.0, 2), ("_norm_back", 20.0, 2)]
    parts = sum_by_kind(kernels, calls=2)
    assert list(parts) == ["MLP", "norm"]
    assert parts["norm"] == {"us": 15.0, "kernels": 3.0}
