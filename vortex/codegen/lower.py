"""From scheduled functions to an object file of plain C functions.

TVM's stock CPU pipeline wraps a function in its packed calling convention and turns every local buffer into a heap
allocation; a micro-kernel wants neither, so the passes are listed here. Accumulators stay `alloca`, which LLVM keeps in
vector registers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import Sequential
from tvm.target import Target

from vortex.codegen.cpu_masks import has_mask_registers, in_parts, parts_ir


def cpu_target(llvm_cpu: str, clears: bool = True) -> Target:
    """Functions for it clear the upper halves of vector registers before they return, or leave that to who calls."""
    # Loop strength reduction makes more addresses than there are registers: they spill (12x2 vectors: half the speed).
    # A kernel begins with a line of code, in what is measured and in what is run, whatever is linked before it.
    options = ["-disable-lsr:bool=true", "-align-all-functions:uint=6"]
    features = {} if clears else {"mattr": ["-vzeroupper"]}
    return Target({"kind": "llvm", "mcpu": llvm_cpu, "cl-opt": options, **features})


def with_body(function: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def plain_signature(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace every buffer parameter by a bare pointer to its data."""
    parameters, declarations = [], []
    for parameter in function.params:
        if isinstance(parameter.ty, tirx.BufferType):
            data = tirx.Var(f"{parameter.name}_data", tvm.ir.PointerType(tvm.ir.PrimType("float32")))
            declarations.append(tirx.DeclBuffer(parameter, data=data))
            parameters.append(data)
        else:
            parameters.append(parameter)
    body = tirx.SeqStmt([*declarations, function.body]) if declarations else function.body
    return tirx.PrimFunc(parameters, body, function.ret_type, function.attrs)


Rewrite = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def lower(
    functions: list[tirx.PrimFunc],
    target: Target,
    share: bool = True,
    simplify: bool = True,
    rewrite: Rewrite | None = None,
) -> tvm.IRModule:
    """Lower to what LLVM takes; `share` factors common subexpressions out, which takes minutes on the cost, and drops
    what has no effect, which LLVM does as well.

    `rewrite` is applied to every function before, while indices are still those of its buffers.
    `simplify` puts the value of every variable in its places. Where places are many and long, as in nests, that takes
    longer than all else, to be undone or done again by LLVM: without it buffers must have one dimension, and divisions
    must be those of C.
    """
    module = tvm.IRModule({str(function.attrs["global_symbol"]): function for function in functions})
    first = [s_tir.transform.StmtSimplify()] if simplify else []
    flat = [tirx.transform.FlattenBuffer()] if simplify else []
    second = [tirx.transform.StmtSimplify()] if simplify else []
    bare = [tirx.transform.RemoveNoOp()] if simplify and share else []
    sharing = [tirx.transform.CommonSubexprElim()] if share else []
    module = Sequential(
        [
            tirx.transform.BindTarget(target.with_host(target)),
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.LowerMatchBuffer(),
            *first,
            s_tir.transform.LowerOpaqueBlock(),
            *flat,
            tirx.transform.VectorizeLoop(True),
            tirx.transform.UnrollLoop(),
            *second,
            *bare,
        ]
    )(module)
    if rewrite:
        module = tvm.IRModule({name: rewrite(function) for name, function in module.functions.items()})
    module = Sequential(sharing)(module)
    module = tvm.IRModule({name: plain_signature(function) for name, function in module.functions.items()})
    return tirx.transform.LowerIntrin()(module) if simplify else module


def importing(function: tirx.PrimFunc, llvm_ir: str) -> tirx.PrimFunc:
    """The function in a module that also has what the LLVM text defines."""
    body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", tvm.ir.StringImm(llvm_ir), function.body)
    return with_body(function, body)


def compile_object(
    functions: list[tirx.PrimFunc],
    target: Target,
    path: Path,
    share: bool = True,
    llvm_ir: str = "",
    simplify: bool = True,
    rewrite: Rewrite | None = None,
) -> None:
    """`llvm_ir` defines what functions call besides those of the runtime; the rest is as in `lower`."""
    module = lower(functions, target, share, simplify, rewrite)
    if not has_mask_registers(target):
        module = tvm.IRModule({name: with_body(f, in_parts(f.body)) for name, f in module.functions.items()})
        llvm_ir += parts_ir()
    if llvm_ir:
        first, *rest = module.functions.items()
        module = tvm.IRModule({first[0]: importing(first[1], llvm_ir), **dict(rest)})
    build(module, target).write_to_file(str(path))


def build(module: tvm.IRModule, target: Target) -> Any:
    """LLVM's module of lowered functions, optimized."""
    return tvm.get_global_func("target.build.llvm")(module, target)
