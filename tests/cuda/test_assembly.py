"""Every specialisation of the small kernel families compiles and assembles for both targets without spills."""

import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")

from support.assemble import assemble

from ninfer_nb.cuda.kernels import bandwidth, embed, gdn_controls, gdn_recurrent, norm, sampling, synthetic
from ninfer_nb.cuda.spec import KernelSpec

WIDTHS = (256, 5120)
SPECS = [
    bandwidth.read_spec(),
    *[KernelSpec.of(embed.copy_rows, gather=gather) for gather in (True, False)],
    *[embed.embed_spec(format, width) for format in embed.PACKINGS for width in WIDTHS],
    *[norm.norm_spec(width) for width in WIDTHS],
    *[spec for domain in (4096, 248077) for spec in sampling.sampling_specs(domain)],
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
