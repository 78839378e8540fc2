"""Reads the symbol tables of Mach-O files (64-bit, little-endian).

    symbols.py undefined FILE...  the symbols that the object files use but do not define, one per line
    symbols.py exported FILE...   the symbols that the files export
    symbols.py from NAME FILE     the symbols that a linked file takes from the library called NAME
"""

import struct
import sys
from pathlib import Path

HEADER = struct.Struct("<8I")
MAGIC = 0xFEEDFACF
SYMTAB = 0x2
# Load commands that name a library. A symbol's library is its position among these commands.
LIBRARIES = {0xC, 0x80000018, 0x8000001F, 0x20, 0x80000023}

DEBUG, PRIVATE, TYPE, EXTERNAL = 0xE0, 0x10, 0x0E, 0x01


class MachO:
    """`symbols` holds (name, n_type, n_desc); `libraries` holds the install names of the linked libraries."""

    def __init__(self, path):
        data = Path(path).read_bytes()
        magic, _, _, _, commands, _, _, _ = HEADER.unpack_from(data)
        if magic != MAGIC:
            sys.exit(f"symbols.py: {path} is not a 64-bit Mach-O file")
        self.symbols, self.libraries = [], []
        at = HEADER.size
        for _ in range(commands):
            command, size = struct.unpack_from("<2I", data, at)
            if command == SYMTAB:
                self._read_symbols(data, *struct.unpack_from("<4I", data, at + 8))
            elif command in LIBRARIES:
                name = at + struct.unpack_from("<I", data, at + 8)[0]
                self.libraries.append(_text(data, name))
            at += size

    def _read_symbols(self, data, table, count, strings, _):
        for i in range(count):
            name, kind, _, desc, _ = struct.unpack_from("<IBBHQ", data, table + 16 * i)
            if not kind & DEBUG:
                self.symbols.append((_text(data, strings + name), kind, desc))

    def undefined(self):
        return {n for n, kind, _ in self.symbols if kind & EXTERNAL and not kind & TYPE}

    def defined(self):
        """Returns external definitions, including definitions that are hidden from other images."""
        return {n for n, kind, _ in self.symbols if kind & EXTERNAL and kind & TYPE}

    def exported(self):
        return {
            n
            for n, kind, _ in self.symbols
            if kind & EXTERNAL and kind & TYPE and not kind & PRIVATE
        }

    def taken_from(self, library):
        """Returns the undefined symbols that the two-level namespace binds to `library`."""
        names = [Path(name).name for name in self.libraries]
        if library not in names:
            sys.exit(f"symbols.py: not linked against {library}: {', '.join(names)}")
        ordinal = names.index(library) + 1
        return {
            n
            for n, kind, desc in self.symbols
            if kind & EXTERNAL and not kind & TYPE and desc >> 8 == ordinal
        }


def _text(data, at):
    return data[at : data.index(b"\0", at)].decode()


def main():
    match sys.argv[1:]:
        case ["undefined", *files]:
            objects = [MachO(file) for file in files]
            names = set().union(*(o.undefined() for o in objects))
            names -= set().union(*(o.defined() for o in objects))
        case ["exported", *files]:
            names = set().union(*(MachO(file).exported() for file in files))
        case ["from", library, file]:
            names = MachO(file).taken_from(library)
        case _:
            sys.exit(__doc__)
    print("\n".join(sorted(names)))


main()
