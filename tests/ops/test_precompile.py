"""Kernels compiled together. That a training is the same with it is tested on a GPU."""

import threading

import pytest
import torch
from compiling import compiled

jit = pytest.importorskip("triton.runtime.jit")
from linearno.ops.precompile import compile_ahead  # noqa: E402

CUDA = torch.device("cuda")


def one(x, size):
    """Stands for a kernel."""


def other(x, size):
    """Stands for another."""


@pytest.fixture
def compiler(monkeypatch):
    """What reaches compiler and device: (kernel, size, only compiled), and threads that loaded a kernel."""

    class Compiler:
        ran, loaded, refuse = [], [], ()

        def run(self, kernel, x, size, *, grid, warmup, **options):
            if kernel.fn in self.refuse:
                raise ValueError("no such instruction")
            self.ran.append((kernel.fn, size, warmup))
            return self if warmup else None

        def _init_handles(self):
            self.loaded.append(threading.get_ident())

    made = Compiler()
    made.ran, made.loaded = [], []
    monkeypatch.setattr(jit.JITFunction, "run", lambda kernel, *args, **how: made.run(kernel, *args, **how))
    return made


def launches(*asked):
    kernels = {fn: jit.JITFunction(fn) for fn, _ in asked}
    x = torch.zeros(8)
    return lambda: [kernels[fn][(1,)](x, size, num_warps=4) for fn, size in asked]


def test_each_kernel_is_compiled_and_loaded_once_and_none_runs(compiler):
    compile_ahead(launches((one, 1), (other, 1), (one, 1), (one, 2)), CUDA)
    assert sorted(compiler.ran, key=str) == sorted(
        [(one, 1, True), (other, 1, True), (one, 2, True)], key=str
    )
    assert len(compiler.loaded) == 3
    assert threading.get_ident() not in compiler.loaded


def test_afterwards_kernels_run(compiler):
    work = launches((one, 1))
    compile_ahead(work, CUDA)
    work()
    assert compiler.ran == [(one, 1, True), (one, 1, False)]


def test_meanwhile_other_threads_run_theirs(compiler):
    def work():
        thread = threading.Thread(target=launches((other, 5)))
        thread.start()
        thread.join()

    compile_ahead(work, CUDA)
    assert compiler.ran == [(other, 5, False)]


def test_what_a_backward_pass_launches_is_compiled_too(compiler):
    launch = launches((other, 3))

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, slope):
            launch()
            return slope

    compile_ahead(lambda: Layer.apply(torch.ones(2, requires_grad=True)).sum().backward(), CUDA)
    assert compiler.ran == [(other, 3, True)]


@pytest.mark.parametrize("stage", ["work", "compiler"])
def test_an_error_is_raised_and_kernels_run_again(compiler, stage):
    work = launches((one, 1))

    def fails():
        work()
        raise ValueError("no such mesh")

    compiler.refuse = (one,) if stage == "compiler" else ()
    with pytest.raises(ValueError, match="no such instruction" if stage == "compiler" else "no such mesh"):
        compile_ahead(work if stage == "compiler" else fails, CUDA)
    compiler.refuse, compiler.ran = (), []
    work()
    assert compiler.ran == [(one, 1, False)]


def test_two_threads_that_compile_at_once_leave_nothing_behind(compiler):
    before, begun = jit.JITFunction.run, threading.Event()
    work = launches((other, 5))

    def compiles():
        begun.set()
        compile_ahead(work, CUDA)

    def waits():
        thread.start()
        begun.wait()
        thread.join(0.2)  # it has to wait for us

    thread = threading.Thread(target=compiles)
    compile_ahead(waits, CUDA)
    thread.join()
    assert jit.JITFunction.run is before
    assert compiler.ran == [(other, 5, True)]


def test_elsewhere_nothing_is_called(compiler):
    compile_ahead(lambda: pytest.fail("called"), torch.device("cpu"))


def test_what_the_real_compiler_made_ahead_is_found_when_it_is_launched(tmp_path):
    loaded, more = compiled("precompile_run.py", cache=tmp_path)
    assert loaded.split() == ["_adam", "_adam", "_norm", "_square_sums", "_square_sums"]
    assert more == "0"
