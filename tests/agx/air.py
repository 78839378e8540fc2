"""Kernels that Apple's front end compiled: out of a .metallib, and made into LLVM IR for SPIR-V."""

import re
import struct


class Metallib:
    """The container of compiled kernels; the format is told by tests/metal_sim/src/air/metallib.rs."""

    def __init__(self, path):
        self.file = open(path, "rb")
        header = self.file.read(88)
        if header[:4] != b"MTLB":
            raise SystemExit(f"{path} is not a Metal library")
        words = struct.unpack_from("<9Q", header, 16)
        self.file.seek(words[1])
        entries = self.file.read(words[2] + 4)
        self.places, at = {}, 4
        for _ in range(struct.unpack_from("<I", entries)[0]):
            size = struct.unpack_from("<I", entries, at)[0]
            tags, tag = {}, at + 4
            while tag + 6 <= at + size and entries[tag : tag + 4] != b"ENDT":
                length = struct.unpack_from("<H", entries, tag + 4)[0]
                tags[entries[tag : tag + 4]] = entries[tag + 6 : tag + 6 + length]
                tag += 6 + length
            name = tags[b"NAME"].rstrip(b"\0").decode()
            offset = struct.unpack_from("<Q", tags[b"OFFT"], 16)[0]
            self.places[name] = words[7] + offset, struct.unpack("<Q", tags[b"MDSZ"])[0]
            at += max(size, 4)

    def bitcode(self, name):
        if name not in self.places:
            raise SystemExit(f"MLX's metallib has no kernel {name}: see tests/agx/kernels.py")
        offset, size = self.places[name]
        self.file.seek(offset)
        return self.file.read(size)


LAYOUT = "e-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-n8:16:32:64-G1"
# What a thread is told: OpenCL's function, and whether it takes a dimension, and its type.
BUILT_IN = {
    "threadgroup_position_in_grid": ("_Z12get_group_idj", True, "i64"),
    "thread_position_in_threadgroup": ("_Z12get_local_idj", True, "i64"),
    "thread_position_in_grid": ("_Z13get_global_idj", True, "i64"),
    "threadgroups_per_grid": ("_Z14get_num_groupsj", True, "i64"),
    "threads_per_threadgroup": ("_Z14get_local_sizej", True, "i64"),
    "threads_per_grid": ("_Z15get_global_sizej", True, "i64"),
    "thread_index_in_threadgroup": ("_Z19get_local_linear_idv", False, "i64"),
    "thread_index_in_simdgroup": ("_Z22get_sub_group_local_idv", False, "i32"),
    "simdgroup_index_in_threadgroup": ("_Z16get_sub_group_idv", False, "i32"),
    "simdgroups_per_threadgroup": ("_Z18get_num_sub_groupsv", False, "i32"),
}


def by_call(kind, function, parameters):
    given = ", ".join(f"{t} %{n}" for n, t in enumerate(parameters))
    return f"%r = call spir_func {kind} @{function}({given})", [(kind, function, parameters)]


def lane(operation):
    """A shuffle: a read of the lane that `operation` finds from this one's number and argument 1."""
    lines = f"""%me = call spir_func i32 @_Z22get_sub_group_local_idv()
 %by = zext i16 %1 to i32
 %from = {operation} i32 %me, %by
 %r = call spir_func float @_Z19sub_group_broadcastfj(float %0, i32 %from)"""
    return lines, [
        ("i32", "_Z22get_sub_group_local_idv", []),
        ("float", "_Z19sub_group_broadcastfj", ["float", "i32"]),
    ]


def reduce(operation, of):
    """Over a SIMD group; bfloat by way of float."""
    kind, letters = {"f32": ("float", "f"), "f16": ("half", "Dh"), "bf16": ("float", "f")}.get(
        of, ("i32", "j")
    )
    function = f"_Z20sub_group_reduce_{operation}{letters}"
    if of != "bf16":
        return by_call(kind, function, [kind])
    lines = f"""%wide = fpext bfloat %0 to float
 %sum = call spir_func float @{function}(float %wide)
 %r = fptrunc float %sum to bfloat"""
    return lines, [(kind, function, [kind])]


def by_float(lines, calls, parameters):
    """A function of halves, computed as one of floats."""
    for n, kind in enumerate(parameters):
        if kind == "half":
            lines = f"%wide{n} = fpext half %{n} to float\n " + re.sub(rf"%{n}\b", f"%wide{n}", lines)
    return lines.replace("%r =", "%wide =") + "\n %r = fptrunc float %wide to half", calls


def scaled(function, factor, before):
    """exp and log by the hardware's powers of two."""
    call = "call spir_func float @" + function
    if before:
        return f"%m = fmul contract float %0, {factor}\n %r = {call}(float %m)", [
            ("float", function, ["float"])
        ]
    return f"%m = {call}(float %0)\n %r = fmul contract float %m, {factor}", [("float", function, ["float"])]


def compare(predicate):
    def body(kind):
        return (f"%c = icmp {predicate} {kind} %0, %1\n %r = select i1 %c, {kind} %0, {kind} %1", [])

    return body


def product(kinds):
    """16 steps of two polynomials: see simdgroup_multiply_accumulate in tests/metal_sim/include."""
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
            step = f"%step{k}.{i}"
            given = f"float {sums[i]}, float %a{k % 2}, float %b{i}"
            lines.append(f"{step} = call contract float @llvm.fma.f32({given})")
            sums[i] = step
    lines.append(f"%half = insertelement <2 x float> poison, float {sums[0]}, i32 0")
    lines.append(f"%r = insertelement <2 x float> %half, float {sums[1]}, i32 1")
    return "\n ".join(lines), [("float", "llvm.fma.f32", ["float"] * 3)]


def definition(name, kind, parameters):
    """The body of an intrinsic of AIR, and what it calls."""
    float1, float2 = ["float"], ["float", "float"]
    simple = {
        "exp2": by_call("float", "_Z11native_exp2f", float1),
        "log2": by_call("float", "_Z11native_log2f", float1),
        "sin": by_call("float", "_Z10native_sinf", float1),
        "cos": by_call("float", "_Z10native_cosf", float1),
        "sqrt": by_call("float", "_Z11native_sqrtf", float1),
        "rsqrt": by_call("float", "_Z12native_rsqrtf", float1),
        "exp": scaled("_Z11native_exp2f", "0x3FF7154760000000", True),
        "log": scaled("_Z11native_log2f", "0x3FE62E4300000000", False),
        "fmax": by_call("float", "llvm.maxnum.f32", float2),
        "fmin": by_call("float", "llvm.minnum.f32", float2),
        "fabs": by_call("float", "llvm.fabs.f32", float1),
        "simd_shuffle_xor": lane("xor"),
        "simd_shuffle_down": lane("add"),
        "simd_shuffle_up": lane("sub"),
    }
    base = re.fullmatch(r"air\.(?:fast_)?(\w+)\.(f32|f16)", name)
    if base and base[1] in simple:
        return simple[base[1]] if base[2] == "f32" else by_float(*simple[base[1]], parameters)
    reduction = re.fullmatch(r"air\.simd_(sum|max|min)\.(f32|f16|bf16|[us]\.i32)", name)
    if reduction:
        return reduce({"sum": "add"}.get(reduction[1], reduction[1]), reduction[2])
    convert = re.fullmatch(r"air\.convert\.f\.f(16|32)\.([us])\.i(\d+)", name)
    if convert:
        return f"%r = {convert[2]}itofp i{convert[3]} %0 to {kind}", []
    order = re.fullmatch(r"air\.(max|min)\.([us])\.i\d+", name)
    if order:
        sign = {"u": "u", "s": "s"}[order[2]] + {"max": "gt", "min": "lt"}[order[1]]
        return compare(sign)(kind)
    if name == "air.wg.barrier":
        return "call spir_func void @_Z18work_group_barrierj(i32 1)", [
            ("void", "_Z18work_group_barrierj", ["i32"])
        ]
    if name == "air.simdgroup.barrier":
        return "", []
    if name == "air.normalize_function_constant_predicate.i8":
        return "%r = or i8 %0, 0", []
    if name.startswith("air.is_uniform."):
        return "%r = or i1 false, false", []
    if name.startswith("air.simdgroup_matrix_8x8_multiply_accumulate."):
        return product(parameters)
    raise SystemExit(f"tests/agx/air.py does not know {name}")


class Module:
    """One kernel's module as text, from llvm-dis."""

    def __init__(self, text, kernel, constants):
        self.kernel, self.constants = kernel, constants
        self.declared = {}  # the functions that take the place of intrinsics
        self.text = self.lanes(text)
        self.metadata = dict(re.findall(r"^(!\d+) = (?:distinct )?!\{(.*)\}$", text, re.M))

    @staticmethod
    def lanes(text):
        """A matrix is 64 elements to AIR, two of which a lane sees."""

        def shuffle(m):
            # Of the first two places of the result, each from the first or the second operand.
            picks = [p.split()[-1] for p in m[3].split(",")[:2]]
            picks = [p if not p.isdigit() or int(p) < 64 else str(int(p) - 62) for p in picks]
            mask = ", ".join(f"i32 {p}" for p in picks)
            return f"shufflevector {m[1]}<2 x i32> <{mask}>"

        text = re.sub(r"shufflevector (.*)<(64) x i32> <([^>]*)>", shuffle, text)
        return re.sub(r"<64 x (float|half|bfloat)>", r"<2 x \1>", text)

    def arguments(self):
        node = next(v for v in self.metadata.values() if re.match(rf'ptr @"?{re.escape(self.kernel)}"?,', v))
        table = self.metadata[node.split(", ")[2]]
        return [self.metadata[a] for a in table.split(", ")] if table else []

    def pointers(self):
        """The names of the arguments that the entry point takes."""
        found = [a for a in self.arguments() if re.search(r'"air\.(indirect_)?buffer"', a)]
        names = [
            re.search(r'"air\.arg_name", !"(\w*)"', a)[1] for a in found if 'i32 3, !"air.arg_type' not in a
        ]
        return names

    def body(self):
        skipped = ("target ", "source_filename", "; ", "!", "attributes ", "@llvm.used", "@llvm.compiler")
        out, types, self.called = [], None, []
        for line in self.text.split("\n"):
            if line.startswith(skipped) or "@llvm.assume" in line or "@llvm.lifetime." in line:
                continue
            line = re.sub(r", ![\w.]+ ![\w]+", "", line)
            line = re.sub(r' "air-[\w-]+"', "", line)
            line = re.sub(r" #\d+(?= |$)", "", line).replace(' section "air.static_init"', "")
            line = re.sub(r', section "air[\w.]*"', "", line)
            declared = re.match(r"declare (.*?) @([\w.]+)\((.*)\)", line)
            if declared and declared[2].startswith("air."):
                out.append(
                    self.define(
                        declared[2],
                        declared[1].split()[-1] if ">" not in declared[1] else "<2 x float>",
                        declared[3],
                    )
                )
                continue
            if line.startswith("define") and re.search(rf'@"?{re.escape(self.kernel)}"?\(', line):
                types = self.types(line)
                line = re.sub(r"^define .*?\(", "define internal void @msl_kernel(", line)
                line = line.replace(" local_unnamed_addr", "").replace("{", "alwaysinline {")
            out.append(self.constant(line))
        return out, types

    @staticmethod
    def types(line):
        """Of the parameters in a line that defines a function."""
        inside = line[line.index("(") + 1 : line.rindex(")")]
        inside = re.sub(r"dereferenceable\(\d+\)", "", inside)
        return re.findall(r"(?:^|, )(ptr addrspace\(\d\)|<\d x i\d+>|i\d+)", inside)

    def constant(self, line):
        """Variables: threadgroup memory has no value, function constants get theirs."""
        if line.startswith("@") and "addrspace(3)" in line:
            return line.replace(" zeroinitializer", " undef")
        found = re.match(
            r"(@\S+) = .*addrspace\(2\) (?:externally_initialized )?(global|constant) (\S+) (.*)", line
        )
        if not found or found[3].startswith("["):
            return line
        index = re.search(r"MTL_FC_INIT_(\d+)_", found[1])
        if not index:
            return f"{found[1]} = internal addrspace(2) {found[2]} {found[3]} zeroinitializer"
        if int(index[1]) not in self.constants:
            raise SystemExit(f"{self.kernel} asks for function constant {index[1]}: see tests/agx/kernels.py")
        return f"{found[1]} = internal addrspace(2) constant {found[3]} {self.constants[int(index[1])]}"

    def define(self, name, kind, parameters):
        kinds = [p.strip() for p in re.split(r",(?![^<]*>)", parameters)] if parameters else []
        kinds = [re.match(r"(<\d+ x \w+>|\w+)", k)[1] for k in kinds]
        body, calls = definition(name, kind, kinds)
        for call in calls:
            self.declared[call[1]] = call
        given = ", ".join(f"{k} %{n}" for n, k in enumerate(kinds))
        ending = " ret void" if kind == "void" else f" ret {kind} %r"
        return f"define internal {kind} @{name}({given}) alwaysinline convergent {{\n {body}\n{ending}\n}}"

    def value(self, kind, argument, place):
        """The lines that compute a built-in value, and its name."""
        name = re.search(r'!"air\.(\w+)"', argument)[1]
        if name not in BUILT_IN:
            raise SystemExit(f"tests/agx/air.py does not know {name}")
        function, along, wide = BUILT_IN[name]
        self.declared[function] = (wide, function, ["i32"] if along else [])
        vector = re.match(r"<(\d) x (i\d+)>", kind)
        count, element = (int(vector[1]), vector[2]) if vector else (1, kind)
        lines, made = [], "poison"
        for i in range(count):
            at = f"{place}.{i}"
            lines.append(f" %w{at} = call spir_func {wide} @{function}({f'i32 {i}' if along else ''})")
            one = f"%w{at}"
            if wide != element:
                lines.append(f" %t{at} = trunc {wide} {one} to {element}")
                one = f"%t{at}"
            if vector:
                lines.append(f" %v{at} = insertelement {kind} {made}, {element} {one}, i32 {i}")
                one = f"%v{at}"
            made = one
        return lines, made

    def ir(self):
        body, types = self.body()
        arguments = self.arguments()
        if types is None or len(types) != len(arguments):
            raise SystemExit(f"{self.kernel}: its parameters and their table differ")
        parameters, lines, passed, mask = [], [], [], 0
        for i, (kind, argument) in enumerate(zip(types, arguments)):
            name = f"%a{i}"
            if kind == "ptr addrspace(3)":
                body.append(f"@msl_local_{i} = internal addrspace(3) global [4096 x i8] undef, align 16")
                name = f"@msl_local_{i}"
            elif kind.startswith("ptr"):
                mask |= (kind == "ptr addrspace(2)") << len(parameters)
                parameters.append(f"{kind} {name}")
            else:
                more, name = self.value(kind, argument, i)
                lines += more
            passed.append(f"{kind} {name}")
        entry = [f"define spir_kernel void @{self.kernel}__c{mask:x}({', '.join(parameters)}) {{"]
        entry += lines + [f" call void @msl_kernel({', '.join(passed)})", " ret void", "}"]
        declared = [
            f"declare {'spir_func ' * (not f.startswith('llvm.'))}{kind} @{f}({', '.join(p)})"
            + " convergent" * ("group" in f and "get" not in f)
            + " memory(none)" * ("get_" in f)
            for kind, f, p in self.declared.values()
        ]
        present = "\n".join(body)
        declared = [
            d
            for d in declared
            if not re.search(rf"^declare [^@]*@{re.escape(re.search(r'@([^(]+)', d)[1])}\(", present, re.M)
        ]
        return (
            "\n".join(
                [
                    f'target datalayout = "{LAYOUT}"',
                    'target triple = "spirv64-unknown-unknown"',
                    *body,
                    *declared,
                    *entry,
                ]
            )
            + "\n"
        )
