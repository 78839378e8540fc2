"""Computes the offsets of the fields of kernel parameters from the structs in metal/*.h."""

import re
import struct
from pathlib import Path

NUMBERS = {
    "unsigned": (4, "I"),
    "uint": (4, "I"),
    "int": (4, "i"),
    "float": (4, "f"),
    "long": (8, "q"),
    "unsigned long": (8, "Q"),
}


class Layouts:
    def __init__(self, folder):
        text = "\n".join(p.read_text() for p in sorted(Path(folder).glob("*.h")))
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
        self.numbers = {name: int(n) for name, n in re.findall(r"(\w+) = (\d+),", text)}
        self.structs = {}
        for name, body in re.findall(r"struct (\w+) \{([^{}]*)\};", text):
            fields = re.findall(r"([\w ]+?) (\w+)(?:\[(\w+)\])?;", body)
            known = set(NUMBERS) | set(self.structs)
            if fields and all(kind.strip() in known for kind, _, _ in fields):
                self.structs[name] = [(kind.strip(), field, count) for kind, field, count in fields]

    def size(self, kind):
        """Returns the size and the alignment of a type."""
        if kind in NUMBERS:
            return NUMBERS[kind][0], NUMBERS[kind][0]
        fields = self.fields(kind)
        align = max(self.size(k)[1] for _, _, k in fields)
        end = max(at + self.size(k)[0] for at, _, k in fields)
        return -(-end // align) * align, align

    def fields(self, kind):
        """Returns the offset, the path and the type of each member. Each element of an array is a
        separate member."""
        found, at = [], 0
        for of, name, count in self.structs[kind]:
            size, align = self.size(of)
            at = -(-at // align) * align
            count = int(self.numbers.get(count, count)) if count else 0
            for i in range(max(count, 1)):
                found.append((at, f"{name}[{i}]" if count else name, of))
                at += size
        return found

    def flat(self, kind, base=0, prefix=""):
        for at, name, of in self.fields(kind):
            if of in NUMBERS:
                yield prefix + name, (base + at, of)
            else:
                yield from self.flat(of, base + at, f"{prefix}{name}.")

    def words(self, kind, values):
        """Yields (offset, word) for each 32-bit word of these values."""
        if kind not in self.structs:
            raise SystemExit(f"metal/ has no struct {kind}: see tests/agx/kernels.py")
        places = dict(self.flat(kind))
        for name, value in values.items():
            if name not in places:
                raise SystemExit(f"{kind} has no field {name}: see tests/agx/kernels.py")
            at, of = places[name]
            data = struct.pack("<" + NUMBERS[of][1], value)
            for i in range(0, len(data), 4):
                yield at + i, struct.unpack_from("<I", data, i)[0]
