"""Every specialisation of the small kernel families compiles and assembles for both targets without spills."""

import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")

from support.assemble import assemble

from ninfer_nb.cuda.errors import KernelError
from ninfer_nb.cuda.kernels import (
    acceptance,
    attention_decode,
    bandwidth,
    embed,
    gdn_controls,
    gdn_recurrent,
    gemm_wgmma,
    gemv,
    norm,
    rope_append,
    sampling,
    synthetic,
)
from ninfer_nb.cuda.spec import KernelSpec

WIDTHS = (256, 5120)
SPECS = [
    bandwidth.read_spec(),
    *[KernelSpec.of(embed.copy_rows, gather=gather) for gather in (True, False)],
    *[embed.embed_spec(format, width) for format in embed.PACKINGS for width in WIDTHS],
    *[norm.norm_spec(width) for width in WIDTHS],
    *[spec for domain in (4096, 248077) for spec in sampling.sampling_specs(domain)],
    *[
        spec
        for domain in (4096, 248077)
        for width in (2, 4, 6)
        for spec in acceptance.acceptance_specs(domain, width, (2, 3, 4))
    ],
    KernelSpec.of(embed.lookup_rows),
    *[synthetic.fill_spec(kind) for kind in range(7)],
    *[
        spec
        for width, heads in ((256, 6), (5120, 48))
        for spec in (gdn_controls.controls_rows_spec(width, heads), gdn_controls.controls_tile_spec(width, heads))
    ],
    *[
        gdn_recurrent.convolve_spec(channels, store_history=store, emit=emit)
        for channels in (1280, 10240)
        for store, emit in ((True, True), (False, True), (True, False))
    ],
    *[
        gdn_recurrent.delta_spec(keys, values, store_state=store, emit=emit)
        for keys, values in ((2, 6), (16, 48))
        for store, emit in ((True, True), (False, True), (True, False))
    ],
]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_assembles_without_spills(spec, arch):
    assemble(spec, arch)


ROPES = [
    rope_append.rope_append_spec(q_heads, kv_heads, int8=int8, axes=3)
    for q_heads, kv_heads in ((4, 2), (24, 4))
    for int8 in (False, True)
]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("spec", ROPES, ids=str)
def test_rope_and_append_assemble_without_spills(spec, arch):
    assemble(spec, arch)


LINEAR = [
    *[gemv.spec((format,), rows, 5120) for format in gemv.PACKINGS for rows in (1, 8, 16)],
    *[gemv.spec((format,), 1, 5120, "swiglu", norm=True) for format in gemv.PACKINGS],
    *[gemv.spec((format,), gemv.most_rows((format,), 17408), 17408, "add") for format in gemv.PACKINGS],
]


@pytest.mark.parametrize("spec", LINEAR, ids=str)
def test_few_row_linear_assembles_without_spills(spec):
    """sm_90a only: its ring of 228 KB does not fit the 99 KB of sm_120a."""
    assemble(spec, "sm_90a")


@pytest.mark.parametrize("width", [256, 768, 5120, 6144, 17408])
def test_a_launch_takes_as_many_rows_as_fit(width):
    for format in gemv.PACKINGS:
        rows = gemv.most_rows((format,), width, norm=True)
        gemv.spec((format,), rows, width, norm=True).build()
        if rows < gemv.BUCKETS[-1]:
            with pytest.raises(KernelError, match="do not fit"):
                gemv.spec((format,), rows + 1, width, norm=True).build()


MANY = [gemm_wgmma.spec(format, epilogue) for format in gemv.PACKINGS for epilogue in ("store", "add", "swiglu")]


@pytest.mark.parametrize("spec", MANY, ids=str)
def test_many_row_linear_assembles_without_spills(spec):
    """sm_90a only: no other architecture has wgmma."""
    assemble(spec, "sm_90a")


ATTENTION = [
    plan.spec if half == "split" else plan.combine
    for int8 in (False, True)
    for q_heads, kv_heads in ((4, 2), (24, 4))
    for plan in [attention_decode.plan(1, 1, q_heads, kv_heads, int8, 2048, 132)]
    for half in ("split", "combine")
]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("spec", dict.fromkeys(ATTENTION), ids=str)
def test_decode_attention_assembles_without_spills(spec, arch):
    assemble(spec, arch)
