"""The table as Markdown."""

HEAD = """# Cost of the Metal kernels on Apple's G13 GPU

Written by `scripts/agx.sh --update`. [metal-without-a-mac.md](metal-without-a-mac.md) says how it is made,
and what it does not show. Cycles are those that 32 threads keep a core's pipes busy for a unit of work: of
the busiest pipe, and of the integer pipe. Registers have 16 bits; threads are as many as a core then holds.
Figures are ours / MLX's.
"""


def ratio(ours, theirs):
    if ours == theirs:
        return "1.00"
    return f"{ours / theirs:.2f}" if theirs else "-"


def case_row(name, entry, kernel):
    mlx = entry.get("mlx", {})

    def pair(ours, key, form):
        return form.format(ours[key]) + (f" / {form.format(mlx[key])}" if mlx else "")

    return [
        name,
        entry["unit"],
        *(pair(kernel, key, "{}") for key in ("registers", "threads", "spilled")),
        *(pair(entry, key, "{:.1f}") for key in ("alu", "ic")),
        *(ratio(entry[key], mlx[key]) if mlx else "" for key in ("alu", "ic")),
    ]


def families(found):
    """The worst of the element types of each kernel."""
    members = {}
    for name, entry in found["kernels"].items():
        family, _, dtype = name.rpartition("_")
        members.setdefault(family, []).append((entry["registers"], entry["spilled"], dtype, entry))
    for family, of in members.items():
        *_, dtype, entry = max(of, key=lambda member: member[:3])
        yield [family, dtype, *(str(entry[key]) for key in ("registers", "threads", "spilled", "arrays"))]


def grid(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def markdown(found):
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = f"{HEAD}\nMade with {versions}.\n\n## Kernels that a Llama runs\n\n"
    head = "case, unit of work, registers, threads, bytes spilled, cycles, integer pipe, ratio, integer ratio"
    kernels = found["kernels"]
    cases = found["cases"].items()
    text += grid(head.split(", "), [case_row(name, e, kernels[e["kernel"]]) for name, e in cases])
    head = "kernel, worst type, registers, threads, bytes spilled, bytes of arrays"
    return text + "\n## Every kernel\n\n" + grid(head.split(", "), families(found))
