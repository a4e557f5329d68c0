"""Pallas as jax 0.11 has it, with the names that tokamax uses."""

import types

from isocompute_jax.model.kernels.imports import give_back


def pallas_of(kernel, **names):
    return types.SimpleNamespace(**names), types.SimpleNamespace(kernel=kernel), types.SimpleNamespace(dot="dot")


def test_old_names_are_given_back_once():
    def kernel(body, *, out_type=(), scratch_types=(), grid=()):
        return body, out_type, scratch_types, grid

    pallas, mosaic_gpu, triton = pallas_of(kernel)
    give_back(pallas, mosaic_gpu, triton)
    changed = mosaic_gpu.kernel
    give_back(pallas, mosaic_gpu, triton)
    assert mosaic_gpu.kernel is changed and pallas.dot == "dot"
    assert changed("body", out_shape=["out"], scratch_shapes={"x": 1}, grid=(2,)) == ("body", ["out"], {"x": 1}, (2,))
    assert changed("body", out_type="out", grid=(2,)) == ("body", "out", (), (2,))


def test_pallas_that_has_them_is_left_alone():
    def kernel(body, out_shape=(), *, out_type=(), scratch_shapes=()):
        return body, out_shape, out_type, scratch_shapes

    pallas, mosaic_gpu, triton = pallas_of(kernel, dot="its own")
    give_back(pallas, mosaic_gpu, triton)
    assert mosaic_gpu.kernel is kernel and pallas.dot == "its own"
