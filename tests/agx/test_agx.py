"""Tests of the programs that make the table of kernel costs. Tests that need compilers run only if
scripts/agx.sh runs this file."""

import importlib.util
import json
import os
import tempfile
import unittest
from pathlib import Path

import air
import bfloat
import cost
import kernels
import layout
import table
from compare import worse
from render import markdown, with_summary

HERE = Path(__file__).parent


def one(kernels, cases=None):
    return {"versions": {}, "cases": cases or {}, "kernels": kernels}


def row(**changed):
    return {"registers": 64, "threads": 1024, "spilled": 0, "arrays": 0, "alu": 100, "ic": 50, **changed}


class Printed(unittest.TestCase):
    def test_documents_are_of_the_table(self):
        found = json.loads(table.TABLE.read_text())
        self.assertEqual(table.PRINTED.read_text(), markdown(found))
        text = table.SUMMARIZED.read_text()
        self.assertEqual(text, with_summary(text, found))


class Token(unittest.TestCase):
    def setUp(self):
        path = table.ROOT / "scripts" / "token_model.py"
        spec = importlib.util.spec_from_file_location("token_model", path)
        self.model = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.model)

    def test_the_document_is_of_the_model(self):
        text = self.model.PAGE.read_text()
        self.assertEqual(text, self.model.with_tables(text))

    def test_a_prologue_is_hidden_by_the_first_weights(self):
        chip = self.model.Chip("one", 1, 1.0, 1 / self.model.STREAMED)  # it transfers a byte in each nanosecond
        of = lambda prologue: self.model.product(chip, 4096, 4096, 256, 32, 512, 1.0, prologue)
        first = 2 * 8 * 32 * 4 * 9 / 1e3  # two threadgroups of eight SIMD groups, each with four rows of nine bytes
        stream, rest, exposed = of(first + 1)
        self.assertAlmostEqual(exposed, 1)
        self.assertAlmostEqual(stream, 4096 * 4096 * 4.5 / 8 / 1e3)
        self.assertEqual((rest, of(first - 1)[2]), (0, 0))

    def test_weights_of_eight_billion(self):
        size = sum(axis * sum(rows) for axis, _, rows in self.model.MODELS[0].products()) * 4.5 / 8
        self.assertAlmostEqual(size / 1e9, 4.22, places=2)


class Compare(unittest.TestCase):
    def faults(self, **changed):
        return worse(one({"k": row()}), one({"k": row(**changed)}))[0]

    def test_what_is_worse_is_named(self):
        for changed, said in (
            ({"threads": 896, "registers": 112}, "k: threads 1024 -> 896 (registers 64 -> 112)"),
            ({"spilled": 16}, "k: bytes spilled 0 -> 16"),
            ({"arrays": 64}, "k: bytes of arrays on the stack 0 -> 64"),
            ({"alu": 104}, "k: cycles 100 -> 104"),
            ({"ic": 52}, "k: cycles of the integer pipe 50 -> 52"),
        ):
            self.assertEqual(self.faults(**changed), [said])

    def test_little_is_let_pass(self):
        self.assertEqual(self.faults(alu=103, ic=51, registers=104), [])

    def test_what_is_better_is_no_fault(self):
        faults, better = worse(one({"k": row(threads=896)}), one({"k": row(alu=90)}))
        self.assertEqual(faults, [])
        self.assertEqual(len(better), 2)

    def test_a_case_judges_its_kernel(self):
        case = {"kernel": "k", "unit": "weight", "threads": 512, "alu": 4.0, "ic": 2.0}
        before = one({"k": row()}, {"c": case})
        self.assertEqual(worse(before, one({"k": row(alu=200)}, {"c": case}))[0], [])
        slower = one({"k": row()}, {"c": {**case, "alu": 4.2}})
        self.assertEqual(worse(before, slower)[0], ["c (k): cycles for each weight 4 -> 4.2"])
        fewer = one({"k": row(threads=640)}, {"c": {**case, "threads": 256}})
        self.assertEqual(worse(before, fewer)[0], ["c (k): threads 512 -> 256"])

    def test_the_table_must_fit(self):
        self.assertEqual(len(worse(one({"k": row()}), one({"l": row()}))[0]), 2)
        other = {**one({}), "versions": {"mesa": "1"}}
        self.assertEqual(len(worse(one({}), other)[0]), 1)


class Cost(unittest.TestCase):
    def counts(self, floats, fscib, ic):
        return {"floats": floats, "fscib": fscib, "ic": ic}

    def test_the_loop_that_computes(self):
        loops = [
            {"parent": -1, "hot": self.counts(1, 500, 8)},
            {"parent": 0, "hot": self.counts(64, 100, 60)},
            {"parent": 1, "hot": self.counts(0, 10, 20)},
        ]
        measured = {"loops": loops, "hot": self.counts(0, 30, 40), "total": self.counts(70, 900, 700)}
        cost = lambda *side: table.cost(kernels.Side("k", *side), measured, "case")
        self.assertEqual(cost(2), (50, 30))
        self.assertEqual(cost(1, "loop", 3), (130, 120))
        self.assertEqual(cost(1, "once"), (40, 40))
        self.assertEqual(cost(1, "once", 2), (230, 160))
        self.assertEqual(cost(1, "all"), (900, 700))
        # The code outside loops counts once, the outer loop twice, the main loop three times, and
        # the other loop five times.
        loops[2]["parent"] = 0
        self.assertEqual(cost(2, "whole", 3, 2, 5), ((30 + 1000 + 300 + 50) / 2, (40 + 16 + 180 + 100) / 2))
        for least in (10, 70):  # the loop has 64 floating-point instructions
            with self.assertRaisesRegex(SystemExit, "see `per`"):
                table.cost(kernels.Side("k"), measured, "case", least)

    def test_threads_are_of_whole_threadgroups(self):
        for group, threads in ((0, 576), (256, 512), (64, 576), (1024, 576)):
            self.assertEqual(table.launched(kernels.Side("k", group=group), {"threads": 576}), threads)

    def test_every_case_has_a_name_of_its_own(self):
        names = [case.name for case in kernels.cases("float16")]
        self.assertEqual(len(names), len(set(names)))


class Layout(unittest.TestCase):
    def test_fields_of_fields(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.h").write_text(
                "enum { N = 2, }; struct View { long start; long strides[4]; };\n"
                "struct Params { unsigned a; // one\n View views[N]; float scale; unsigned long size; };"
            )
            words = layout.Layouts(folder).words
            self.assertEqual(list(words("Params", {"a": 7})), [(0, 7)])
            self.assertEqual(list(words("Params", {"views[1].strides[3]": 1})), [(80, 1), (84, 0)])
            self.assertEqual(list(words("Params", {"scale": 1.0})), [(88, 0x3F800000)])
            self.assertEqual(list(words("Params", {"size": 1 << 32})), [(96, 0), (100, 1)])
            with self.assertRaisesRegex(SystemExit, "no field b"):
                list(words("Params", {"b": 1}))


AIR = """target triple = "air64-apple-macosx14.0.0"
@_ZL8has_bias = internal unnamed_addr addrspace(2) global i8 undef, align 1
@_Z8has_bias.MTL_FC_INIT_20_b = internal addrspace(2) externally_initialized constant i8 undef, align 1
define void @f(ptr addrspace(1) noundef "air-buffer-no-alias" %0, ptr addrspace(2) noundef %1, i32 noundef %2) #0 {
  %4 = call float @air.simd_sum.f32(float 1.0) #1
  %5 = shufflevector <64 x float> %a, <64 x float> %b, <64 x i32> <i32 0, i32 65, i32 2>
  ret void
}
declare float @air.simd_sum.f32(float) #0
!air.kernel = !{!1}
!1 = !{ptr @f, !2, !3}
!2 = !{}
!3 = !{!4, !5, !6}
!4 = !{i32 0, !"air.buffer", !"air.location_index", i32 0, !"air.arg_name", !"x"}
!5 = !{i32 1, !"air.buffer", !"air.location_index", i32 1, !"air.arg_name", !"n"}
!6 = !{i32 2, !"air.thread_position_in_grid", !"air.arg_name", !"i"}
"""


class Air(unittest.TestCase):
    def test_an_entry_is_made(self):
        module = air.Module(AIR, "f", {20: 1})
        text = module.ir()
        self.assertIn("define spir_kernel void @f__c2(ptr addrspace(1) %a0, ptr addrspace(2) %a1)", text)
        self.assertIn("@_Z8has_bias.MTL_FC_INIT_20_b = internal addrspace(2) constant i8 1", text)
        self.assertIn("<2 x i32> <i32 0, i32 3>", text)
        self.assertNotIn("64 x", text)
        self.assertIn("declare spir_func float @_Z20sub_group_reduce_addf(float)", text)

    def test_what_is_unknown_is_named(self):
        with self.assertRaisesRegex(SystemExit, "function constant 20"):
            air.Module(AIR, "f", {}).ir()
        with self.assertRaisesRegex(SystemExit, "air.new_thing.f32"):
            air.Module(AIR.replace("simd_sum", "new_thing"), "f", {20: 1}).ir()


class Bfloat(unittest.TestCase):
    def test_no_bfloat_is_left(self):
        text = "\n".join(
            [
                "  %1 = load bfloat, ptr %p, align 2",
                "  %2 = fpext bfloat %1 to float",
                "  %3 = fadd contract bfloat %1, 0xR3F80",
                "  %4 = fptrunc <2 x float> %v to <2 x bfloat>",
                "  %5 = phi nnan bfloat [ %1, %a ], [ %3, %b ]",
                "  %6 = call bfloat @llvm.fma.bf16(bfloat %1, bfloat %3, bfloat %5)",
            ]
        )
        lowered = bfloat.without_bfloat(text)
        self.assertNotIn("bfloat", lowered)
        self.assertIn("load i16, ptr %p", lowered)
        self.assertIn("16256", lowered)  # the bits of 1.0 in bfloat16
        self.assertIn("declare float @llvm.fma.f32(float, float, float)", lowered)
        self.assertEqual(bfloat.without_bfloat("float"), "float")


@unittest.skipUnless("AGX_STAT" in os.environ, "scripts/agx.sh --check runs it with the compilers")
class Planted(unittest.TestCase):
    def test_a_planted_regression_is_noticed(self):
        with tempfile.TemporaryDirectory(prefix="agx-") as folder:
            tools = table.Tools(folder)

            def measured(planted):
                return one(cost.costs(tools, HERE / "planted.metal", [f"-DPLANTED={planted}"]))

            before = measured(0)
            self.assertEqual(worse(before, measured(0)), ([], []))
            for planted, said in (
                (1, "planted_float32: bytes of arrays on the stack 0 -> "),
                (2, "planted_float32: threads 1024 -> "),
                (3, "planted_float32: bytes spilled 0 -> "),
                (4, "planted_float32: cycles of the integer pipe "),
            ):
                faults = worse(before, measured(planted))[0]
                self.assertTrue(any(fault.startswith(said) for fault in faults), (planted, faults))


if __name__ == "__main__":
    unittest.main()
