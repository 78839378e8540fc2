"""Reads kernels from a .metallib and rewrites them to LLVM IR for SPIR-V. A .metallib contains AIR,
which is Apple's form of LLVM IR."""

import os
import re
import struct

import intrinsics


class Metallib:
    """A .metallib: a container of compiled kernels. crates/metal-sim/src/air/metallib.rs describes
    the format."""

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
        return os.pread(self.file.fileno(), size, offset)  # threads share the file


LAYOUT = "e-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-n8:16:32:64-G1"
# For each built-in value of a thread: OpenCL's function, whether the function takes a dimension,
# and the type of its result.
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


class Module:
    """The module of one kernel, as text that llvm-dis printed."""

    def __init__(self, text, kernel, constants):
        self.kernel, self.constants = kernel, constants
        self.text = lanes(text)
        self.metadata = dict(re.findall(r"(?m)^(!\d+) = (?:distinct )?!\{(.*)\}$", text))

    def arguments(self):
        node = next(v for v in self.metadata.values() if v.startswith(f"ptr @{self.kernel},"))
        return [self.metadata[node] for node in self.metadata[node.split(", ")[2]].split(", ")]

    def body(self):
        """Returns the lines of the module, in which the kernel is renamed to msl_kernel, and the
        types of the kernel's parameters."""
        skipped = ("target ", "source_filename", "; ", "!", "attributes ", "@llvm.used", "@llvm.compiler")
        out, types = [], []
        for line in self.text.split("\n"):
            if line.startswith(skipped) or "@llvm.assume" in line or "@llvm.lifetime." in line:
                continue
            line = re.sub(r', !\S+ !\w+| "air-[\w-]+"| #\d+(?= |$)|,? section "air[\w.]*"', "", line)
            declared = re.match(r"declare (?:noundef )?(.*) @(air\.[\w.]+)\((.*)\)", line)
            if declared:
                kinds = re.findall(r"(?:^|, )(<\d+ x \w+>|\w+)", declared[3])
                line = intrinsics.definition(declared[2], declared[1], kinds)
            elif line.startswith("define") and f" @{self.kernel}(" in line:
                inside = line[line.index("(") + 1 : line.rindex(")")]
                types = re.findall(r"(?:^|, )(ptr addrspace\(\d\)|<\d x i\d+>|i\d+)", inside)
                line = re.sub(r"^define .*?\(", "define internal void @msl_kernel(", line)
                line = line.replace(" local_unnamed_addr", "").replace("{", "alwaysinline {")
            out.append(self.variable(line))
        return out, types

    def variable(self, line):
        """Returns the line. If it declares threadgroup memory, removes the initial value. If it
        declares a function constant, sets the constant's value."""
        if line.startswith("@") and "addrspace(3)" in line:
            return line.replace(" zeroinitializer", " undef")
        found = re.match(
            r"(@\S+) = .*addrspace\(2\) (?:externally_initialized )?(global|constant) ([^\s\[]+) ", line
        )
        if not found:
            return line
        name, kind, of = found.groups()
        index, value = re.search(r"MTL_FC_INIT_(\d+)_", name), "zeroinitializer"
        if index:
            kind, value = "constant", self.constants.get(int(index[1]))
            if value is None:
                raise SystemExit(
                    f"{self.kernel} asks for function constant {index[1]}: see tests/agx/kernels.py"
                )
        return f"{name} = internal addrspace(2) {kind} {of} {value}"

    def ir(self):
        """Returns the module with an entry point. The entry point's name has the form that the
        rewriter in crates/metal-sim gives to entry points."""
        lines, types = self.body()
        arguments = self.arguments()
        if len(types) != len(arguments):
            raise SystemExit(f"{self.kernel}: its parameters and their table differ")
        parameters, before, passed, mask = [], [], [], 0
        for i, (kind, argument) in enumerate(zip(types, arguments)):
            value = f"%a{i}"
            if kind == "ptr addrspace(3)":
                value = f"@msl_local_{i}"
                lines.append(f"{value} = internal addrspace(3) global [4096 x i8] undef, align 16")
            elif kind.startswith("ptr"):
                mask |= (kind == "ptr addrspace(2)") << len(parameters)
                parameters.append(f"{kind} {value}")
            else:
                more, value = built_in(kind, argument, i)
                before += more
            passed.append(f"{kind} {value}")
        lines += [f"define spir_kernel void @{self.kernel}__c{mask:x}({', '.join(parameters)}) {{", *before]
        lines += [f"  call void @msl_kernel({', '.join(passed)})", "  ret void", "}"]
        lines += intrinsics.declarations("\n".join(lines))
        return (
            f'target datalayout = "{LAYOUT}"\ntarget triple = "spirv64-unknown-unknown"\n'
            + "\n".join(lines)
            + "\n"
        )


def lanes(text):
    """Replaces matrices of 64 elements, which is their form in AIR, with the two elements that a
    lane holds."""

    def shuffle(m):
        # Keep the first two components of the result. An index of 64 or more selects from the
        # second operand, which has two elements here.
        picks = [pick.split()[-1] for pick in m[2].split(",")[:2]]
        picks = [str(int(p) - 62) if p.isdigit() and int(p) >= 64 else p for p in picks]
        return f"shufflevector {m[1]}<2 x i32> <i32 {picks[0]}, i32 {picks[1]}>"

    text = re.sub(r"shufflevector (.*)<64 x i32> <([^>]*)>", shuffle, text)
    return re.sub(r"<64 x (float|half|bfloat)>", r"<2 x \1>", text)


def built_in(kind, argument, place):
    """Returns the lines that compute a built-in value of a thread, and the name of the value."""
    name = re.search(r'!"air\.(\w+)"', argument)[1]
    if name not in BUILT_IN:
        raise SystemExit(f"tests/agx/air.py does not know {name}")
    function, along, wide = BUILT_IN[name]
    vector = re.match(r"<(\d) x (i\d+)>", kind)
    count, element = (int(vector[1]), vector[2]) if vector else (1, kind)
    lines, made = [], "poison"
    for i in range(count):
        one = f"%w{place}.{i}"
        lines.append(f"  {one} = call spir_func {wide} @{function}({f'i32 {i}' if along else ''})")
        if wide != element:
            lines.append(f"  %t{place}.{i} = trunc {wide} {one} to {element}")
            one = f"%t{place}.{i}"
        if vector:
            lines.append(f"  %v{place}.{i} = insertelement {kind} {made}, {element} {one}, i32 {i}")
            one = f"%v{place}.{i}"
        made = one
    return lines, made
