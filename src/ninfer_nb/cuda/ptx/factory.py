"""From a PTX template to a typed numba-cuda intrinsic.

`instruction()` is the one place where inline assembly meets Numba. It knows nothing of single instructions; those live
beside it, one file per chapter of the PTX ISA.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_nb.cuda.errors import missing_extra

try:
    from llvmlite import ir
    from numba import types
    from numba.cuda.extending import intrinsic
except ImportError as error:
    raise missing_extra(error) from error

u16, u32, u64 = types.uint16, types.uint32, types.uint64
i32, i64 = types.int32, types.int64
f32, f64 = types.float32, types.float64

_LLVM = {
    u16: ir.IntType(16), u32: ir.IntType(32), i32: ir.IntType(32), u64: ir.IntType(64), i64: ir.IntType(64),
    f32: ir.FloatType(), f64: ir.DoubleType(),
}  # fmt: skip
_CONSTRAINT = {u16: "h", u32: "r", i32: "r", u64: "l", i64: "l", f32: "f", f64: "d"}


def instruction(
    name: str,
    template: str,
    inputs: Sequence[types.Type] = (),
    output: types.Type | Sequence[types.Type] | None = None,
    count: int = 1,
    *,
    tied: bool = False,
    memory: bool = False,
    volatile: bool = False,
    doc: str = "",
):
    """An intrinsic, callable in kernels as `name(*inputs)`, that emits `template`.

    template: PTX with `$0, $1, ...`: outputs first, then inputs.
    inputs:   Numba types. Arguments are cast to them; a u64 input also takes a pointer argument (`types.CPointer`).
    output:   None, one type (with `count` > 1: a UniTuple of it), or a list of types (a tuple).
    tied:     every output is also an input (accumulators), passed as one tuple before the others and returned as one.
              The tied inputs take numbers of their own, so the other inputs start at $(2 * count).
    memory:   touches memory that others touch: never removed, merged or moved across memory accesses.
    volatile: never removed or merged, but free to move among memory accesses (clocks, register control).

    Neither `memory` nor `volatile` means pure: the compiler may merge equal calls, hoist them and drop unused ones.
    """
    outputs = [] if output is None else list(output) if isinstance(output, Sequence) else [output] * count
    accumulators = types.Tuple(outputs)
    returned = accumulators if tied else _return_type(outputs)
    constraints = [f"={_CONSTRAINT[t]}" for t in outputs]
    constraints += [str(i) for i in range(len(outputs))] if tied else []
    constraints += [_CONSTRAINT[t] for t in inputs]
    constraints += ["~{memory}"] if memory else []
    assembly_type = _llvm_return_type(outputs)
    side_effect = memory or volatile or not outputs

    def type_call(typing_context, *arguments):
        values = arguments[1:] if tied else arguments
        accepted = [a if t is u64 and isinstance(a, types.CPointer) else t for t, a in zip(inputs, values, strict=True)]
        return returned(*([accumulators] if tied else []), *accepted), generate

    def generate(context, builder, signature, values):
        operands = list(values)
        if tied:
            accumulator = operands.pop(0)
            operands = [builder.extract_value(accumulator, i) for i in range(len(outputs))] + operands
        operands = [builder.ptrtoint(v, ir.IntType(64)) if isinstance(v.type, ir.PointerType) else v for v in operands]
        function = ir.FunctionType(assembly_type, [v.type for v in operands])
        result = builder.call(
            ir.InlineAsm(function, template, ",".join(constraints), side_effect=side_effect), operands
        )
        if not outputs:
            return context.get_dummy_value()
        if len(outputs) == 1 and not tied:
            return result
        parts = [result] if len(outputs) == 1 else [builder.extract_value(result, i) for i in range(len(outputs))]
        return context.make_tuple(builder, signature.return_type, parts)

    parameters = ["accumulators"] * tied + [f"x{i}" for i in range(len(inputs))]
    made = intrinsic(named(name, parameters, type_call, doc or template))
    made.operand_types = (tuple(inputs), tuple(outputs), tied)
    return made


def plain(name: str, inputs: list[types.Type], output: types.Type, emit):
    """An intrinsic of ordinary LLVM code, `emit(builder, *values)`, which unlike assembly folds into its neighbours."""

    def type_call(typing_context, *arguments):
        return output(*inputs), lambda context, builder, signature, values: emit(builder, *values)

    return intrinsic(named(name, [f"x{i}" for i in range(len(inputs))], type_call, name))


def _return_type(outputs: list[types.Type]) -> types.Type:
    if not outputs:
        return types.void
    return outputs[0] if len(outputs) == 1 else types.Tuple(outputs)


def _llvm_return_type(outputs: list[types.Type]) -> ir.Type:
    if not outputs:
        return ir.VoidType()
    return _LLVM[outputs[0]] if len(outputs) == 1 else ir.LiteralStructType([_LLVM[t] for t in outputs])


def named(name: str, parameters: list[str], type_call, doc: str):
    """Numba reads an intrinsic's parameter names, so the function is made with exactly those."""
    arguments = ", ".join(["typing_context", *parameters])
    namespace = {"type_call": type_call}
    exec(f"def {name}({arguments}):\n    return type_call({arguments})", namespace)
    function = namespace[name]
    function.__doc__ = doc
    return function


def operands(first: int, count: int) -> str:
    """`{$first,...}`, a PTX vector of `count` operands."""
    return "{" + ",".join(f"${i}" for i in range(first, first + count)) + "}"
