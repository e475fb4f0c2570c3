"""Inline PTX in a CUDA source becomes calls of the emulated machine: each statement is parsed, none is guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count

Operands = list[str]
OPENING = re.compile(r"\b(?:__asm__|asm)\b\s*(?:__volatile__|volatile)?\s*\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
REGISTER_TYPES = {".pred": "bool", ".b16": "uint16_t", ".u16": "uint16_t", ".b32": "uint32_t", ".u32": "uint32_t"}
REGISTER_TYPES |= {".s32": "int32_t", ".f32": "float", ".b64": "uint64_t", ".u64": "uint64_t", ".f64": "double"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LEGAL_COPIES = {"ca": {4, 8, 16}, "cg": {16}}


class UnknownInstructionError(ValueError):
    """An instruction that the emulator does not know."""


def close(text: str, start: int) -> int:
    """The index behind the parenthesis that closes the one at `start`."""
    depth, at = 0, start
    while True:
        if text[at] == '"':
            at = STRING.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            return at


def split(text: str, separator: str) -> list[str]:
    """Split where the separator stands outside strings and every kind of bracket."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            at = STRING.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if text[at] == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [part.strip() for part in (*parts, text[begin:])]


def statements(template: str) -> Iterator[str]:
    """The statements of a template, without scopes and comments; labels end in a colon."""
    text = re.sub(r"//[^\n]*", "", template).replace("\t", " ")
    while text := text.strip():
        if text[0] in "{};":
            text = text[1:]
        elif label := re.match(r"\w+:(?!:)", text):
            yield label[0]
            text = text[label.end() :]
        else:
            statement, _, text = text.partition(";")
            yield " ".join(statement.split())


def arguments(section: str) -> Iterator[tuple[str, str]]:
    """(constraint, expression) of every operand in a section of an asm statement."""
    for part in split(section, ","):
        if part:
            constraint = STRING.match(part)
            if constraint is None:
                raise UnknownInstructionError(f"named asm operand: {part}")
            yield constraint[1], part[part.index("(", constraint.end()) + 1 : part.rindex(")")]


def vector(operand: str) -> Operands:
    return split(operand.strip()[1:-1], ",") if operand.startswith("{") else [operand]


def address(operand: str) -> str:
    if not (operand.startswith("[") and operand.endswith("]")):
        raise UnknownInstructionError(f"not an address: {operand}")
    return operand[1:-1].strip()


def call(function: str, *values: object) -> str:
    return f"emulator::{function}({', '.join(map(str, values))});"


def words(name: str, values: Operands) -> str:
    return f"const unsigned {name}[] = {{{', '.join(f'emulator::raw({v})' for v in values)}}};"


def copy_async(o: Operands, cache: str) -> str:
    if int_or_none(o[2]) is not None and int(o[2]) not in LEGAL_COPIES[cache]:
        raise UnknownInstructionError(f"cp.async.{cache} of {o[2]} bytes")
    return call("copy_async", address(o[0]), f"(const void*)({address(o[1])})", o[2], o[3] if len(o) > 3 else o[2])


def int_or_none(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def load_matrices(o: Operands, number: str, transposed: str | None) -> str:
    to = vector(o[0])
    if len(to) != int(number):
        raise UnknownInstructionError(f"ldmatrix.x{number} into {len(to)} registers")
    fetched = call("load_matrices", address(o[1]), str(bool(transposed)).lower(), number, "d_")
    return f"{{ unsigned d_[4]; {fetched} {' '.join(f'{r} = d_[{i}];' for i, r in enumerate(to))} }}"


def mma(o: Operands, depth: str, format: str) -> str:
    d, a, b, c = map(vector, o)
    half = 4 if format == "tf32" else 8
    if (len(d), len(a), len(b), len(c)) != (4, int(depth) // half * 2, int(depth) // half, 4):
        raise UnknownInstructionError(f"mma of depth {depth} in {format} with {len(a)} and {len(b)} registers")
    body = f"{words('a_', a)} {words('b_', b)} const float c_[] = {{{', '.join(c)}}}; float d_[4];"
    back = " ".join(f"{r} = d_[{i}];" for i, r in enumerate(d))
    return f"{{ {body} {call('mma', depth, f'emulator::Format::{format}', 'd_', 'a_', 'b_', 'c_')} {back} }}"


def mma_of_bytes(o: Operands) -> str:
    d, a, b, c = map(vector, o)
    if (len(d), len(a), len(b), len(c)) != (4, 4, 2, 4):
        raise UnknownInstructionError(f"mma of bytes with {len(a)} and {len(b)} registers")
    body = f"{words('a_', a)} {words('b_', b)} const int c_[] = {{{', '.join(c)}}}; int d_[4];"
    back = " ".join(f"{r} = d_[{i}];" for i, r in enumerate(d))
    return f"{{ {body} {call('mma_s8', 'd_', 'a_', 'b_', 'c_')} {back} }}"


def wgmma(o: Operands, columns: str, format: str) -> str:
    d = vector(o[0])
    if len(d) != int(columns) // 2 or o[1].startswith("{"):
        raise UnknownInstructionError(f"wgmma m64n{columns}: {len(d)} accumulators, A from {o[1]}")
    check = f'if (({o[4]}) != 1 || ({o[5]}) != 1) emulator::fail("wgmma with a negated operand");'
    product = call("wgmma", columns, f"emulator::Format::{format}", "d_", *(o[i] for i in (1, 2, 3, 6, 7)))
    return f"{{ float* d_[] = {{{', '.join(f'&({r})' for r in d)}}}; {check} {product} }}"


def compare(o: Operands, relation: str) -> str:
    return f"{o[0]} = ({o[1]} {COMPARE[relation]} {o[2]});"


def pack(o: Operands, type: str) -> str:
    high, low = (f"emulator::to_16<emulator::Format::{type}>({value})" for value in o[1:])
    return f"{o[0]} = {low} | (uint32_t){high} << 16;"


def store(o: Operands, space: str, type: str) -> str:
    values = vector(o[1])
    number = f"const {c_type(type)} v_[] = {{{', '.join(f'({c_type(type)})({v})' for v in values)}}};"
    to = address(o[0]) if space == "shared" else f"(void*)({address(o[0])})"
    return f"{{ {number} {call(f'{space}_store', to, 'v_', 'sizeof v_')} }}"


def load(o: Operands, space: str, type: str) -> str:
    to = vector(o[0])
    origin = address(o[1]) if space == "shared" else f"(const void*)({address(o[1])})"
    back = " ".join(f"{r} = v_[{i}];" for i, r in enumerate(to))
    return f"{{ {c_type(type)} v_[{len(to)}]; {call(f'{space}_load', 'v_', origin, 'sizeof v_')} {back} }}"


def c_type(suffix: str) -> str:
    return REGISTER_TYPES["." + suffix]


def tensor_load(o: Operands) -> str:
    tensor, coordinates = split(address(o[1]), ",")
    blocks = o[3] if len(o) > 3 else "0"
    return call("tensor_load", address(o[0]), f"(const void*)({tensor})", *vector(coordinates), address(o[2]), blocks)


NOTHING = r"fence\.|membar\.|griddepcontrol\.|prefetch|discard\.|cp\.async\.bulk\.prefetch|mbarrier\.inval"
SHARED = r"\.shared(?:::cta)?"
CACHE = r"(?:\.L2::(?:64|128|256)B|\.L2::cache_hint)?"
STATE_CACHE = r"(?:\.(?:nc|relaxed|weak|ca|cg|cs|lu|cv|wb|wt|volatile)|\.L1::\w+|\.L2::\w+)*"
INSTRUCTIONS: list[tuple[str, Callable[..., str]]] = [
    (NOTHING, lambda o: ";"),
    (rf"cp\.async\.(c[ag]){SHARED}\.global{CACHE}", copy_async),
    (r"cp\.async\.commit_group", lambda o: call("copy_commit")),
    (r"cp\.async\.wait_group", lambda o: call("copy_wait", o[0])),
    (r"cp\.async\.wait_all", lambda o: call("copy_commit") + call("copy_wait", 0)),
    (rf"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?{SHARED}\.b16", load_matrices),
    (r"mma\.sync\.aligned\.m16n8k(8|16)\.row\.col\.f32\.(f16|bf16)\.\2\.f32", mma),
    (r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.s8\.s8\.s32", mma_of_bytes),
    (r"mma\.sync\.aligned\.m16n8k(4|8)\.row\.col\.f32\.(tf32)\.tf32\.f32", mma),
    (r"setp\.(eq|ne|lt|le|gt|ge)\.(?:[busf]32|[bus]64|[bus]16)", compare),
    (r"mov\.(?:b|u|s|f)(?:16|32|64)", lambda o: f"{o[0]} = {o[1]};"),
    (r"cvt\.f32\.(f16|bf16)", lambda o, type: f"{o[0]} = emulator::from_16<emulator::Format::{type}>({o[1]});"),
    (r"cvt\.rn\.(f16|bf16)\.f32", lambda o, type: f"{o[0]} = emulator::to_16<emulator::Format::{type}>({o[1]});"),
    (r"cvt\.rn\.(f16|bf16)x2\.f32", pack),
    (r"cvt\.rna\.tf32\.f32", lambda o: f"{o[0]} = emulator::to_tf32({o[1]});"),
    (r"st\.(shared)(?:::cta)?(?:\.v[248])?\.(\w+)", store),
    (rf"st\.(global){STATE_CACHE}(?:\.v[248])?\.(\w+)", store),
    (r"ld\.(shared)(?:::cta)?(?:\.v[248])?\.(\w+)", load),
    (rf"ld\.(global){STATE_CACHE}(?:\.v[248])?\.(\w+)", load),
    (r"bar(?:rier)?\.sync(?:\.aligned)?", lambda o: barrier(o, "true")),
    (r"bar(?:rier)?\.arrive(?:\.aligned)?", lambda o: barrier(o, "false")),
    (rf"mbarrier\.init{SHARED}\.b64", lambda o: call("mbarrier_init", address(o[0]), o[1])),
    (
        rf"mbarrier\.arrive(?:\.release\.cta)?{SHARED}\.b64",
        lambda o: call("mbarrier_arrive", address(o[1]), o[2] if len(o) > 2 else 1),
    ),
    (
        r"mbarrier\.arrive\.shared::cluster\.b64",
        lambda o: call("mbarrier_arrive", address(o[1]), o[2] if len(o) > 2 else 1),
    ),
    (r"elect\.sync", lambda o: f"{o[0].partition('|')[2]} = {call('elected', o[1])}"),
    (r"selp\.u32", lambda o: f"{o[0]} = ({o[3]}) ? ({o[1]}) : ({o[2]});"),
    (r"mapa\.shared::cluster\.u32", lambda o: f"{o[0]} = " + call("in_block", o[1], o[2])),
    (r"barrier\.cluster\.arrive\.relaxed", lambda o: call("cluster_arrive")),
    (r"barrier\.cluster\.wait\.acquire", lambda o: call("cluster_wait")),
    (
        rf"mbarrier\.arrive\.expect_tx(?:\.release\.cta)?{SHARED}\.b64",
        lambda o: call("mbarrier_expect", address(o[1]), o[2], "true"),
    ),
    (
        rf"mbarrier\.expect_tx(?:\.relaxed\.cta)?{SHARED}\.b64",
        lambda o: call("mbarrier_expect", address(o[0]), o[1], "false"),
    ),
    (
        rf"mbarrier\.(?:try|test)_wait\.parity(?:\.acquire\.cta)?{SHARED}\.b64",
        lambda o: f"{o[0]} = " + call("mbarrier_try_wait", address(o[1]), o[2]),
    ),
    (
        r"cp\.async\.bulk\.tensor\.2d\.shared::(?:cluster|cta)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes"
        r"(?:\.multicast::cluster)?(?:\.L2::cache_hint)?",
        tensor_load,
    ),
    (r"wgmma\.fence\.sync\.aligned", lambda o: call("wgmma_fence")),
    (r"wgmma\.commit_group\.sync\.aligned", lambda o: call("wgmma_commit")),
    (r"wgmma\.wait_group\.sync\.aligned", lambda o: call("wgmma_wait", o[0])),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(f16|bf16)\.\2", wgmma),
    (
        r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k8\.f32\.(tf32)\.tf32",
        lambda o, *shape: wgmma([*o, "false", "false"], *shape),
    ),
    (
        r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32",
        lambda o, way: call("warpgroup_registers", o[0], str(way == "inc").lower()),
    ),
]
KNOWN = [(re.compile(pattern), emit) for pattern, emit in INSTRUCTIONS]


def barrier(o: Operands, wait: str) -> str:
    return call("named_barrier", o[0], o[1], wait) if len(o) > 1 else call("block_barrier")


def instruction(statement: str, unique: str) -> str:
    """One PTX statement as C++."""
    if statement.endswith(":"):
        return f"{statement[:-1]}_{unique}:;"
    guard = ""
    if predicated := re.match(r"@(!?)(\w+)\s+", statement):
        guard, statement = f"if ({predicated[1]}{predicated[2]}) ", statement[predicated.end() :]
    if declared := re.fullmatch(r"\.reg (\.\w+) (.*)", statement):
        return f"{REGISTER_TYPES[declared[1]]} {', '.join(f'{name} = 0' for name in split(declared[2], ','))};"
    if jump := re.fullmatch(r"bra(?:\.uni)? (\w+)", statement):
        return f"{guard}goto {jump[1]}_{unique};"
    opcode = re.match(r"[\w.:]+", statement)
    assert opcode is not None, statement
    operands = [o for o in split(statement[opcode.end() :], ",") if o]
    for pattern, emit in KNOWN:
        matched = pattern.match(opcode[0]) if emit is KNOWN[0][1] else pattern.fullmatch(opcode[0])
        if matched:
            return f"{guard}{{ {emit(operands, *(matched.groups() if emit is not KNOWN[0][1] else ()))} }}"
    raise UnknownInstructionError(f"the emulator does not know {opcode[0]}")


def translate_statement(inside: str, unique: str) -> str:
    """An asm statement's inside as a block of C++."""
    sections = split(inside, ":")
    template = "".join(STRING.findall(sections[0]))
    template = template.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    outputs = list(arguments(sections[1])) if len(sections) > 1 else []
    inputs = list(arguments(sections[2])) if len(sections) > 2 else []
    bound = [f"auto& x{i} = {expression};" for i, (_, expression) in enumerate(outputs)]
    bound += [f"const auto x{i} = {expression};" for i, (_, expression) in enumerate(inputs, len(outputs))]
    body = [instruction(re.sub(r"%(\d+)", r"x\1", s), unique) for s in statements(template)]
    return "{ " + " ".join(bound + body) + " }"


def translate(source: str) -> str:
    """The source with every asm statement replaced."""
    out, at, serial = [], 0, count()
    while opening := OPENING.search(source, at):
        end = close(source, opening.end() - 1)
        out += [
            source[at : opening.start()],
            translate_statement(source[opening.end() : end - 1], f"asm{next(serial)}"),
        ]
        at = end
        while source[at] in " \n":
            at += 1
        at += source[at] == ";"
    return "".join(out) + source[at:]
