"""Defines the intrinsics of AIR, Apple's form of LLVM IR, as LLVM IR for SPIR-V, with instructions
and with OpenCL's functions."""

import re

LANE = "call spir_func i32 @_Z22get_sub_group_local_idv()"


def native(function):
    return f"%r = call spir_func float @{function}(float %0)"


def shuffle(operation):
    """Reads a value from another lane. `operation` computes the number of the other lane from
    the number of this lane and the second argument."""
    return f"""%me = {LANE}
  %by = zext i16 %1 to i32
  %from = {operation} i32 %me, %by
  %r = call spir_func float @_Z19sub_group_broadcastfj(float %0, i32 %from)"""


# The functions of floats; `%r` is the result. exp and log use the hardware's exp2 and log2.
FLOATS = {
    "exp2": native("_Z11native_exp2f"),
    "log2": native("_Z11native_log2f"),
    "sin": native("_Z10native_sinf"),
    "cos": native("_Z10native_cosf"),
    "sqrt": native("_Z11native_sqrtf"),
    "rsqrt": native("_Z12native_rsqrtf"),
    "exp": "%m = fmul contract float %0, 0x3FF7154760000000\n  "
    + native("_Z11native_exp2f").replace("%0", "%m"),
    "log": native("_Z11native_log2f").replace("%r", "%m")
    + "\n  %r = fmul contract float %m, 0x3FE62E4300000000",
    "fabs": "%r = call float @llvm.fabs.f32(float %0)",
    "fmax": "%r = call float @llvm.maxnum.f32(float %0, float %1)",
    "fmin": "%r = call float @llvm.minnum.f32(float %0, float %1)",
    "simd_sum": native("_Z20sub_group_reduce_addf"),
    "simd_max": native("_Z20sub_group_reduce_maxf"),
    "simd_min": native("_Z20sub_group_reduce_minf"),
    "simd_shuffle_xor": shuffle("xor"),
    "simd_shuffle_down": shuffle("add"),
    "simd_shuffle_up": shuffle("sub"),
}
# The functions that also have instructions for halves.
HALVES = {"fabs", "fmax", "fmin", "simd_sum", "simd_max", "simd_min"}
OTHERS = {
    "air.wg.barrier": "call spir_func void @_Z18work_group_barrierj(i32 1)",
    "air.simdgroup.barrier": "",  # the lanes of a SIMD group run in lockstep
    "air.normalize_function_constant_predicate.i8": "%r = or i8 %0, 0",
    "air.convert.f.bf16.f.f16": "%wide = fpext half %0 to float\n  %r = fptrunc float %wide to bfloat",
    "air.is_uniform.i1": "%r = or i1 false, false",
    "air.is_uniform.i32": "%r = or i1 false, false",
}


def widened(body, kind, kinds):
    """Adapts a body for floats to half or bfloat: widens the arguments, and narrows the result."""
    for n, of in enumerate(kinds):
        if of in ("half", "bfloat"):
            body = f"%wide{n} = fpext {of} %{n} to float\n  " + re.sub(rf"%{n}\b", f"%wide{n}", body)
    return body.replace("%r =", "%wide =") + f"\n  %r = fptrunc float %wide to {kind}"


def product(kinds):
    """Replaces a matrix product with 16 fused multiply-adds for the two elements of a lane: see
    simdgroup_multiply_accumulate in crates/metal-sim/include."""
    lines = []
    for operand, (name, kind) in enumerate(zip("abs", kinds)):
        element = kind.split()[-1].rstrip(">")
        for i in (0, 1):
            of = f"%{name}{i}" if element == "float" else f"%{name}{i}.narrow"
            lines.append(f"{of} = extractelement {kind} %{operand}, i32 {i}")
            if element != "float":
                lines.append(f"%{name}{i} = fpext {element} {of} to float")
    sums = ["%s0", "%s1"]
    for k in range(8):
        for i in (0, 1):
            given = f"float {sums[i]}, float %a{k % 2}, float %b{i}"
            sums[i] = f"%step{k}.{i}"
            lines.append(f"{sums[i]} = call contract float @llvm.fma.f32({given})")
    lines.append(f"%half = insertelement <2 x float> poison, float {sums[0]}, i32 0")
    lines.append(f"%r = insertelement <2 x float> %half, float {sums[1]}, i32 1")
    return "\n  ".join(lines)


def body(name, kind, kinds):
    if name in OTHERS:
        return OTHERS[name]
    of_floats = re.fullmatch(r"air\.(?:fast_)?(\w+)\.(?:f32|f16|bf16)", name)
    if of_floats and of_floats[1] in FLOATS:
        text = FLOATS[of_floats[1]]
        if kind == "half" and of_floats[1] in HALVES:
            return text.replace("float", "half").replace(".f32", ".f16").replace("f(half", "Dh(half")
        return text if kind == "float" else widened(text, kind, kinds)
    convert = re.fullmatch(r"air\.convert\.f\.f(16|32)\.([us])\.i\d+", name)
    if convert:
        return f"%r = {convert[2]}itofp {kinds[0]} %0 to {kind}"
    order = re.fullmatch(r"air\.(max|min)\.([us])\.i\d+", name)
    if order:
        than = order[2] + {"max": "gt", "min": "lt"}[order[1]]
        return f"%c = icmp {than} {kind} %0, %1\n  %r = select i1 %c, {kind} %0, {kind} %1"
    if name.startswith("air.simdgroup_matrix_8x8_multiply_accumulate."):
        return product(kinds)
    raise SystemExit(f"tests/agx/intrinsics.py does not know {name}")


def definition(name, kind, kinds):
    """Returns the definition of a function that replaces the intrinsic."""
    given = ", ".join(f"{of} %{n}" for n, of in enumerate(kinds))
    ending = "ret void" if kind == "void" else f"ret {kind} %r"
    text = body(name, kind, kinds)
    return f"define internal {kind} @{name}({given}) alwaysinline convergent {{\n  {text}\n  {ending}\n}}"


def declarations(text):
    """Returns declarations of the functions that the text calls but neither defines nor
    declares."""
    present = set(re.findall(r"(?m)^(?:declare|define)[^@]*@([\w.]+)\(", text))
    found = {}
    for convention, kind, name, given in re.findall(
        r" call (?:contract )?(spir_func )?(\S+) @([\w.]+)\((.*)\)", text
    ):
        if name not in present and (convention or name.startswith("llvm.")):
            kinds = ", ".join(argument.split()[0] for argument in given.split(", ") if argument)
            effects = " memory(none)" if "get_" in name else " convergent" if "group_" in name else ""
            found[name] = f"declare {convention}{kind} @{name}({kinds}){effects}"
    return list(found.values())
