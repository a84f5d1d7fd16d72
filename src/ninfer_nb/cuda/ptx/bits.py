"""Bit, integer and special-function instructions (PTX ISA 9.7.1 to 9.7.8), and values seen as other types."""

from __future__ import annotations

from functools import cache

from ninfer_nb.cuda.ptx.factory import f32, i32, i64, instruction, intrinsic, ir, plain, types, u16, u32, u64

# the same bits as another type
f32_as_u32 = plain("f32_as_u32", [f32], u32, lambda builder, x: builder.bitcast(x, ir.IntType(32)))
u32_as_f32 = plain("u32_as_f32", [u32], f32, lambda builder, x: builder.bitcast(x, ir.FloatType()))
# an address plus a signed byte offset. Numba types uint64 + int64 as float64; this never leaves the integers
at = plain("at", [u64, i64], u64, lambda builder, address, offset: builder.add(address, offset))

# mov (9.7.9.1): words from halves and back
pack_u16 = instruction("pack_u16", "mov.b32 $0, {$1, $2};", [u16, u16], u32, doc="u32 of (low, high) halves")
unpack_u16 = instruction("unpack_u16", "mov.b32 {$0, $1}, $2;", [u32], u16, 2, doc="(low, high) halves of a u32")
pack_u32 = instruction("pack_u32", "mov.b64 $0, {$1, $2};", [u32, u32], u64, doc="u64 of (low, high) words")
unpack_u32 = instruction("unpack_u32", "mov.b64 {$0, $1}, $2;", [u64], u32, 2, doc="(low, high) words of a u64")

# prmt (9.7.8.7), lop3 (9.7.8.6), shf (9.7.8.10)
prmt = instruction("prmt", "prmt.b32 $0, $1, $2, $3;", [u32, u32, u32], u32, doc="bytes of {b, a} by selector nibbles")
shf_l_wrap = instruction("shf_l_wrap", "shf.l.wrap.b32 $0, $1, $2, $3;", [u32, u32, u32], u32)
shf_r_wrap = instruction("shf_r_wrap", "shf.r.wrap.b32 $0, $1, $2, $3;", [u32, u32, u32], u32)


@cache
def lop3(table: int):
    """lop3.b32 (9.7.8.6) with an immediate truth table: f(0xF0, 0xCC, 0xAA), so `a & b ^ c` is 0x6A."""
    return instruction(f"lop3_{table:02x}", f"lop3.b32 $0, $1, $2, $3, 0x{table:02X};", [u32, u32, u32], u32)


# dp4a (9.7.1.24): 4 byte products added to a 32-bit integer
dp4a_s32 = instruction("dp4a_s32", "dp4a.s32.s32 $0, $1, $2, $3;", [u32, u32, i32], i32)
dp4a_u32_s32 = instruction("dp4a_u32_s32", "dp4a.u32.s32 $0, $1, $2, $3;", [u32, u32, i32], i32)

# redux.sync (9.7.13.9): over the lanes of `mask`; a collective, so never moved into a branch
redux_add_s32 = instruction("redux_add_s32", "redux.sync.add.s32 $0, $1, $2;", [i32, u32], i32, volatile=True)
redux_max_s32 = instruction("redux_max_s32", "redux.sync.max.s32 $0, $1, $2;", [i32, u32], i32, volatile=True)
redux_max_u32 = instruction("redux_max_u32", "redux.sync.max.u32 $0, $1, $2;", [u32, u32], u32, volatile=True)
redux_min_u32 = instruction("redux_min_u32", "redux.sync.min.u32 $0, $1, $2;", [u32, u32], u32, volatile=True)

# approximate floating point (9.7.3): one MUFU each, subnormals flushed where the name says ftz
ex2_approx = instruction("ex2_approx", "ex2.approx.ftz.f32 $0, $1;", [f32], f32)
lg2_approx = instruction("lg2_approx", "lg2.approx.ftz.f32 $0, $1;", [f32], f32)
rcp_approx = instruction("rcp_approx", "rcp.approx.ftz.f32 $0, $1;", [f32], f32)
rsqrt_approx = instruction("rsqrt_approx", "rsqrt.approx.ftz.f32 $0, $1;", [f32], f32)
sqrt_approx = instruction("sqrt_approx", "sqrt.approx.ftz.f32 $0, $1;", [f32], f32)
tanh_approx = instruction("tanh_approx", "tanh.approx.f32 $0, $1;", [f32], f32)
fma_rn = instruction("fma_rn", "fma.rn.f32 $0, $1, $2, $3;", [f32, f32, f32], f32)

# packed halves (9.7.4)
fma_rn_bf16x2 = instruction("fma_rn_bf16x2", "fma.rn.bf16x2 $0, $1, $2, $3;", [u32, u32, u32], u32)
fma_rn_f16x2 = instruction("fma_rn_f16x2", "fma.rn.f16x2 $0, $1, $2, $3;", [u32, u32, u32], u32)
mul_rn_bf16x2 = instruction("mul_rn_bf16x2", "mul.rn.bf16x2 $0, $1, $2;", [u32, u32], u32)
mul_rn_f16x2 = instruction("mul_rn_f16x2", "mul.rn.f16x2 $0, $1, $2;", [u32, u32], u32)
add_rn_f16x2 = instruction("add_rn_f16x2", "add.rn.f16x2 $0, $1, $2;", [u32, u32], u32)


@intrinsic
def addr(typing_context, array):
    """The generic address (u64) of a Numba array's first element or of a pointer."""
    signature = types.uint64(array)

    def generate(context, builder, signature, values):
        source = signature.args[0]
        pointer = values[0]
        if isinstance(source, types.Array):
            pointer = context.make_array(source)(context, builder, pointer).data
        return builder.ptrtoint(pointer, ir.IntType(64))

    return signature, generate


@cache
def pointer(dtype: types.Type):
    """An intrinsic that turns an address (u64) into a `types.CPointer(dtype)`, for plain indexing."""

    @intrinsic
    def as_pointer(typing_context, address):
        signature = types.CPointer(dtype)(types.uint64)

        def generate(context, builder, signature, values):
            return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

        return signature, generate

    return as_pointer


@intrinsic
def smem_addr(typing_context, array):
    """The 32-bit shared-window address of a shared-memory array: cvta.to.shared (9.7.9.21)."""
    signature = types.uint32(array)

    def generate(context, builder, signature, values):
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        function = ir.FunctionType(ir.IntType(32), [ir.IntType(64)])
        text = "{ .reg .u64 t; cvta.to.shared.u64 t, $1; cvt.u32.u64 $0, t; }"
        return builder.call(ir.InlineAsm(function, text, "=r,l"), [builder.ptrtoint(data, ir.IntType(64))])

    return signature, generate
