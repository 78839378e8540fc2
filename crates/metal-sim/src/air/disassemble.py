import sys

from llvmlite import binding

for path in sys.argv[1:]:
    with open(path, "rb") as bitcode, open(path + ".ll", "w") as text:
        text.write(str(binding.parse_bitcode(bitcode.read())))
