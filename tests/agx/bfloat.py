"""Rewrites LLVM IR to use no bfloat: the numbers become 16-bit integers, which a shift widens to
floats, as on M1 and M2.

Neither Mesa nor the GPUs of M1 and M2 have the type bfloat. Narrowing rounds to even and keeps NaN.
"""

import re

KIND = r"(bfloat|<\d+ x bfloat>)"
FLAGS = r"(?:(?:contract|nnan|ninf|nsz|arcp|afn|reassoc|fast) )*"
NARROW = """define internal i16 @msl_narrow(float %x) alwaysinline {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 32767
  %sum = add i32 %bits, %bias
  %rounded = lshr i32 %sum, 16
  %nan = fcmp uno float %x, 0.0
  %result = select i1 %nan, i32 32704, i32 %rounded
  %narrow = trunc i32 %result to i16
  ret i16 %narrow
}"""


class Lowering:
    def __init__(self):
        self.out = []
        self.serial = 0
        self.called = {}

    def name(self):
        self.serial += 1
        return f"%msl.bf{self.serial}"

    def emit(self, text):
        self.out.append(f"  {text}")

    def widen(self, kind, value):
        """Widens a number or a vector. Returns the name of the result and its type."""
        of = (lambda t: kind.replace("bfloat", t)) if "<" in kind else (lambda t: t)
        by = "splat (i32 16)" if "<" in kind else "16"
        wide, shifted, result = self.name(), self.name(), self.name()
        self.emit(f"{wide} = zext {of('i16')} {value} to {of('i32')}")
        self.emit(f"{shifted} = shl nuw {of('i32')} {wide}, {by}")
        self.emit(f"{result} = bitcast {of('i32')} {shifted} to {of('float')}")
        return result, of("float")

    def narrow(self, result, value, kind):
        if "<" not in kind:
            self.emit(f"{result} = call i16 @msl_narrow(float {value})")
            return
        count, vector = int(kind[1:].split()[0]), "poison"
        for i in range(count):
            element, narrow = self.name(), self.name()
            self.emit(f"{element} = extractelement <{count} x float> {value}, i32 {i}")
            self.emit(f"{narrow} = call i16 @msl_narrow(float {element})")
            to = result if i == count - 1 else self.name()
            self.emit(f"{to} = insertelement <{count} x i16> {vector}, i16 {narrow}, i32 {i}")
            vector = to

    def widening(self, m):
        value, kind = self.widen(m[2], m[3])
        self.emit(f"{m[1]} = bitcast {kind} {value} to {kind}")

    def narrowing(self, m):
        self.narrow(m[1], m[2], m[3])

    def arithmetic(self, m):
        (a, kind), (b, _) = self.widen(m[3], m[4]), self.widen(m[3], m[5])
        result = self.name()
        self.emit(f"{result} = {m[2]} contract {kind} {a}, {b}")
        self.narrow(m[1], result, m[3])

    def negation(self, m):
        self.emit(f"{m[1]} = xor i16 {m[2]}, -32768")

    def comparison(self, m):
        (a, kind), (b, _) = self.widen(m[3], m[4]), self.widen(m[3], m[5])
        self.emit(f"{m[1]} = fcmp {m[2]} {kind} {a}, {b}")

    def from_integer(self, m):
        result = self.name()
        self.emit(f"{result} = {m[2]} {m[3]} {m[4]} to float")
        self.narrow(m[1], result, "bfloat")

    def intrinsic(self, m):
        values = [self.widen("bfloat", x.split()[-1])[0] for x in m[3].split(",")]
        self.called[m[2]] = len(values)
        result, given = self.name(), ", ".join(f"float {v}" for v in values)
        self.emit(f"{result} = call float @llvm.{m[2]}.f32({given})")
        self.narrow(m[1], result, "bfloat")


RULES = [
    (rf"  (%\S+) = fpext {FLAGS}{KIND} (\S+) to ", Lowering.widening),
    (rf"  (%\S+) = fptrunc {FLAGS}(?:float|<\d+ x float>) (\S+) to {KIND}", Lowering.narrowing),
    (rf"  (%\S+) = (fadd|fsub|fmul|fdiv) {FLAGS}{KIND} (\S+), (\S+?)(?:,|$)", Lowering.arithmetic),
    (rf"  (%\S+) = fneg {FLAGS}bfloat (\S+)", Lowering.negation),
    (rf"  (%\S+) = fcmp {FLAGS}(\w+) {KIND} (\S+), (\S+)", Lowering.comparison),
    (r"  (%\S+) = (sitofp|uitofp) (?:nneg )?(\S+) (\S+) to bfloat", Lowering.from_integer),
    (
        rf"  (%\S+) = (?:tail )?call {FLAGS}(?:noundef )?bfloat @llvm\.(\w+)\.bf16\(([^)]*)\)",
        Lowering.intrinsic,
    ),
]
RULES = [(re.compile(rule), action) for rule, action in RULES]


def without_bfloat(text):
    if "bfloat" not in text:
        return text
    lowering = Lowering()
    for line in text.split("\n"):
        if re.match(r"declare .*@llvm\.\w+\.bf16\(", line):
            continue
        line = re.sub(r"0xR([0-9A-F]{4})", lambda m: str(int(m[1], 16)), line)
        for rule, action in RULES:
            match = rule.match(line)
            if match:
                action(lowering, match)
                break
        else:
            if "bfloat" in line:
                line = re.sub(rf" = (phi|select) {FLAGS}", r" = \1 ", line)
            lowering.out.append(re.sub(r"(?<![\w.$])bfloat(?![\w])", "i16", line))
    lowering.out.append(NARROW)
    for name, count in lowering.called.items():
        if f"@llvm.{name}.f32(" not in text:
            lowering.out.append(f"declare float @llvm.{name}.f32({', '.join(['float'] * count)})")
    return "\n".join(lowering.out) + "\n"
