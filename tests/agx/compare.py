"""Compares two tables of kernel costs, and finds the costs that became worse."""

MORE = 1.03  # a smaller increase is no fault


def worse(before, after):
    """Returns two lists of sentences: the faults, and the costs that became better."""
    faults, better = [], []
    if before["versions"] != after["versions"]:
        faults.append(f"the table is of {before['versions']}, and these are {after['versions']}")
    for key in ("kernels", "cases"):
        for name in sorted(set(before[key]) ^ set(after[key])):
            said = "in the table and no longer there" if name in before[key] else "not in the table yet"
            faults.append(f"{name}: {said}")

    def compare(name, figure, old, new):
        if new > old * MORE:
            faults.append(f"{name}: {figure} {old:g} -> {new:g}")
        elif new * MORE < old:
            better.append(f"{name}: {figure} {old:g} -> {new:g}")

    def fewer(name, old, new, registers=""):
        if old != new:
            (faults if new < old else better).append(f"{name}: threads {old} -> {new}{registers}")

    # All kernels are judged by the bytes spilled and the arrays on the stack. A kernel without a
    # case is also judged by its threads and by the cycles of all its code. If a kernel has a case,
    # the case is judged instead: by the cycles of the code in which the kernel spends its time, and
    # by the threads that a core runs at once, rounded down to full threadgroups.
    judged = {entry["kernel"] for entry in after["cases"].values()}
    for name in sorted(set(before["kernels"]) & set(after["kernels"])):
        old, new = before["kernels"][name], after["kernels"][name]
        compare(name, "bytes spilled", old["spilled"], new["spilled"])
        compare(name, "bytes of arrays on the stack", old["arrays"], new["arrays"])
        if name not in judged:
            registers = f" (registers {old['registers']} -> {new['registers']})"
            fewer(name, old["threads"], new["threads"], registers)
            compare(name, "cycles", old["alu"], new["alu"])
            compare(name, "cycles of the integer pipe", old["ic"], new["ic"])
    for name in before["cases"]:
        if name in after["cases"]:
            old, new = before["cases"][name], after["cases"][name]
            said = f"{name} ({new['kernel']})"
            fewer(said, old["threads"], new["threads"])
            compare(said, f"cycles for each {new['unit']}", old["alu"], new["alu"])
            compare(said, f"cycles of the integer pipe for each {new['unit']}", old["ic"], new["ic"])
    return faults, better
