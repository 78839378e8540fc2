"""Formats the table of kernel costs as Markdown."""

HEAD = """# Cost of the Metal kernels on Apple's G13 GPU

`scripts/agx.sh --update` writes this page. [Metal without a Mac](metal-without-a-mac.md) says how, and names its
limits. Cycles are the time for which 32 threads keep a core's pipes busy for a unit of work: the busiest pipe, and
the integer pipe. Products of few rows are counted whole: a thread's work on 4096 columns with what it does before and
after. Registers have 16 bits; threads are the number that a core holds with these registers, in a case in whole
threadgroups as they are launched. Figures are ours / MLX's.
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
        pair(kernel, "registers", "{}"),
        pair(entry, "threads", "{}"),
        pair(kernel, "spilled", "{}"),
        *(pair(entry, key, "{:.1f}") for key in ("alu", "ic")),
        *(ratio(entry[key], mlx[key]) if mlx else "" for key in ("alu", "ic")),
    ]


def families(found):
    """Yields a row for each kernel, with the numbers of the element type that needs the most
    registers."""
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


FLOATS = ("mxfp4", "mxfp8", "nvfp4")
# The rows of the summary in docs/ops.md, with the cases of each row.
SUMMARY = {
    "`rms_norm`, `layer_norm`, `softmax`": ("rms_norm row", "layer_norm row", "softmax row"),
    "one row with weights of 3, 4, 5, 6, 8 bits": [f"quantized {b} bits, 1 row" for b in (3, 4, 5, 6, 8)],
    "one row with weights of mxfp4, mxfp8, nvfp4": [f"quantized {mode}, 1 row" for mode in FLOATS],
    "2, 4, 8 rows with weights of 4 bits": [f"quantized 4 bits, {r} rows" for r in (2, 4, 8)],
    "tile of 32 rows with weights of 3, 4, 5, 6, 8 bits": [f"quantized {b} bits, tile" for b in (3, 4, 5, 6, 8)],
    "tile of 64 rows with weights of 3, 4, 5, 6, 8 bits": [f"quantized {b} bits, tall" for b in (3, 4, 5, 6, 8)],
    "attention of one position, 1, 4, 8 heads that share keys": [
        f"attention, {h} a key head" for h in ("1 head", "4 heads", "8 heads")
    ],
    "attention of many positions, heads of 64, 80, 96, 128, 256 features": [
        f"attention, prefill, {d} features" for d in (64, 80, 96, 128, 256)
    ],
    "`rope` of one position, of many": ("rope, one position", "rope, many positions"),
    "one row, a tile with unpacked weights": ("linear, 1 row", "linear, tile"),
}
BEGIN, END = "<!-- cycles:begin, made by scripts/agx.sh -->\n", "<!-- cycles:end -->\n"


def summary(found):
    def ratios(cases, dtype):
        entries = [found["cases"][f"{case}, {dtype}"] for case in cases]
        return ", ".join(ratio(entry["alu"], entry["mlx"]["alu"]) for entry in entries)

    rows = [[name, ratios(cases, "float16"), ratios(cases, "bfloat16")] for name, cases in SUMMARY.items()]
    return BEGIN + grid(["cycles, ours / MLX's", "float16", "bfloat16"], rows) + END


def with_summary(page, found):
    """Returns the text of a page, with the summary of the table replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + summary(found) + rest.partition(END)[2]
